"""Predictions of stored and final models for every sample of a split."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fl.api.method import Predictor, View
from fl.api.trees import Tree
from fl.base.schema import GROUP, PERSONAL
from fl.engine.evaluate import SCORED_SPLITS, Portion, ViewOutputs
from fl.engine.sample_arrays import Arrays
from fl.engine.simulation import Simulation, Trainable
from fl.engine.state import State


def predict_split(simulation: Simulation, weights: Tree, stage: str, split: str) -> pd.DataFrame:
    """Predict every sample of a split with stored models.

    Args:
        simulation: The run.
        weights: The stored variables of the stage, see `Simulation.final_weights`.
        stage: The stage.
        split: A split of the simulation's client data.

    Returns:
        A row for each sample of clients that have a model, client after client. The columns are
        ``client``, ``sample``, ``group`` (a name, if the data set has groups), ``label`` and
        ``predicted`` (numbers of classes), and ``score_<number>`` for the softmax of each class;
        with targets, ``target`` and ``predicted`` in the target's unit.
    """
    return _predict(simulation, stored_models(simulation, weights, stage), split)


def stored_models(simulation: Simulation, weights: Tree, stage: str) -> ViewOutputs:
    """Return the outputs of stored models, see `predict_split`."""
    personal = stage == PERSONAL
    return ViewOutputs(
        _view_of_variables(simulation.method.views[stage], personal),
        personal,
        simulation,
        State({}, weights) if personal else State(weights, {}),
        simulation.client_data,
        replace(simulation.task, look=_keep_outputs),
    )


def final_predictions(simulation: Trainable, state: State) -> pd.DataFrame:
    """Predict every sample that clients do not train on with a run's final models.

    Args:
        simulation: The run.
        state: Its state after the last round.

    Returns:
        The columns ``stage`` and ``split``, and those of `predict_split`.
    """
    tables = [
        _all_predictions(subrun, subrun_state) for subrun, subrun_state in simulation.subruns(state)
    ]
    return tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True)


def _all_predictions(simulation: Simulation, state: State) -> pd.DataFrame:
    data, tables = simulation.client_data, []
    task = replace(simulation.task, look=_keep_outputs)
    for stage, view in simulation.method.views.items():
        personal = stage == PERSONAL
        models = ViewOutputs(view, personal, simulation, state, data, task)
        for split in SCORED_SPLITS:
            if split in data.samples:
                table = _predict(simulation, models, split)
                tables.append(table.assign(stage=stage, split=split))
    table = pd.concat(tables, ignore_index=True)
    return table[["stage", "split", *table.columns.drop(["stage", "split"])]]


def _predict(simulation: Simulation, models: ViewOutputs, split: str) -> pd.DataFrame:
    portions = [
        Portion(client, split, samples)
        for client, samples in simulation.client_data.clients_with_samples(split)
        if models.serves(client)
    ]
    tables: dict[int, pd.DataFrame] = {}
    make_table = _class_table
    if not simulation.task.has_classes:
        make_table = partial(_target_table, simulation.arrays)
    for indices, values in models.values(portions):
        sizes = [len(portions[index].samples) for index in indices]
        outputs, labels = (values[key].cpu().split(sizes) for key in ("outputs", "label"))
        for index, *portion_values in zip(indices, outputs, labels, strict=True):
            tables[index] = make_table(portions[index], *portion_values)
    no_samples, no_labels = Portion(0, split, np.zeros(0, np.int64)), torch.zeros(0)
    empty = make_table(no_samples, torch.zeros(0, simulation.classes), no_labels.long())
    table = pd.concat([tables[index] for index in sorted(tables)] or [empty], ignore_index=True)
    groups = simulation.client_data.groups
    if groups is not None:
        table.insert(2, GROUP, pd.Series(groups[table["sample"]], dtype="string"))
    return table


def _view_of_variables(view: View, personal: bool) -> View:
    """Return the view of a state that contains stored variables in place of the method's trees."""

    def variables(server: Tree, client: Tree | None) -> Tree:
        return dict(client or {}) if personal else dict(server)

    return replace(view, variables=variables) if isinstance(view, Predictor) else variables


def _keep_outputs(outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return outputs and labels unchanged; it replaces a task's ``look``."""
    return {"outputs": outputs, "label": labels}


def _class_table(portion: Portion, outputs: Tensor, labels: Tensor) -> pd.DataFrame:
    scores = outputs.softmax(-1).numpy()
    score_columns = {f"score_{number}": scores[:, number] for number in range(scores.shape[1])}
    return _table(portion, label=labels.numpy(), predicted=scores.argmax(-1), **score_columns)


def _target_table(
    arrays: Arrays, portion: Portion, outputs: Tensor, labels: Tensor
) -> pd.DataFrame:
    """Return targets and predictions in the target's unit, which ``arrays`` know."""
    target, predicted = (
        arrays.label_mean + arrays.label_sd * values.double().numpy()
        for values in (labels, outputs.squeeze(-1))
    )
    return _table(portion, target=target, predicted=predicted)


def _table(portion: Portion, **columns: np.ndarray) -> pd.DataFrame:
    clients = np.full(len(portion.samples), portion.client)
    return pd.DataFrame({"client": clients, "sample": portion.samples, **columns})
