"""What stored models predict for every sample, as their method predicts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from torch import Tensor

from fl.api.method import Predictor, View
from fl.api.trees import Tree
from fl.base.schema import PERSONAL, UNSEEN
from fl.engine import modality
from fl.engine.scored import Portion, Scored
from fl.engine.simulation import Simulation
from fl.engine.state import State

KEPT = ("val", "test", UNSEEN)
"""The splits whose predictions a run keeps."""


def predictions(simulation: Simulation, weights: Tree, stage: str, split: str) -> pd.DataFrame:
    """A row for each sample of a split, of clients that have a model, client after client.

    Args:
        weights: The stored variables of that stage, see `Simulation.final`.
        split: One of the simulation's client data.

    Returns:
        The columns ``client``, ``sample``, ``label`` and ``predicted`` (numbers of classes), and
        for each class ``score_<number>``, its softmax.
    """
    personal = stage == PERSONAL
    models = Scored(
        _stored(simulation.method.views[stage], personal),
        personal,
        simulation.network,
        State({}, weights) if personal else State(weights, {}),
        simulation.arrays,
        simulation.client_data,
        replace(simulation.task, look=_outputs),
    )
    return _predicted(simulation, models, split)


def kept(simulation: Simulation, state: State) -> pd.DataFrame:
    """What a run's final models predict for every sample that clients do not train on.

    Returns:
        The columns ``stage`` and ``split``, and then those of `predictions`.
    """
    if simulation.by_modality:
        alone = zip(simulation.method.by_modality, simulation.by_modality, strict=True)
        each = [kept(run, modality.state_of(method, state)) for method, run in alone]
        return pd.concat(each, ignore_index=True)
    data, tables = simulation.client_data, []
    task = replace(simulation.task, look=_outputs)
    for stage, view in simulation.method.views.items():
        about = stage == PERSONAL, simulation.network, state, simulation.arrays, data, task
        models = Scored(view, *about)
        for split in KEPT:
            if split in data.samples:
                table = _predicted(simulation, models, split)
                tables.append(table.assign(stage=stage, split=split))
    whole = pd.concat(tables, ignore_index=True)
    return whole[["stage", "split", *whole.columns.drop(["stage", "split"])]]


def _predicted(simulation: Simulation, models: Scored, split: str) -> pd.DataFrame:
    portions = [
        Portion(client, split, samples)
        for client, samples in simulation.client_data.having(split)
        if models.serves(client)
    ]
    tables: dict[int, pd.DataFrame] = {}
    for places, seen in models.looked(portions):
        sizes = [len(portions[place].samples) for place in places]
        scores = seen["outputs"].softmax(-1).cpu().split(sizes)
        labels = seen["label"].cpu().split(sizes)
        for place, score, label in zip(places, scores, labels, strict=True):
            tables[place] = _table(portions[place], score.numpy(), label.numpy())
    nobody = Portion(0, split, np.zeros(0, np.int64))
    empty = _table(nobody, np.zeros((0, simulation.classes)), nobody.samples)
    return pd.concat([tables[place] for place in sorted(tables)] or [empty], ignore_index=True)


def _stored(view: View, personal: bool) -> View:
    """A view of a state that has the stored variables themselves in place of the method's trees."""

    def variables(server: Tree, client: Tree | None) -> Tree:
        return dict(client or {}) if personal else dict(server)

    return replace(view, variables=variables) if isinstance(view, Predictor) else variables


def _outputs(outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """What a model gives for each sample, in place of what a task makes of it."""
    return {"outputs": outputs, "label": labels}


def _table(portion: Portion, scores: np.ndarray, labels: np.ndarray) -> pd.DataFrame:
    columns = {
        "client": np.full(len(scores), portion.client),
        "sample": portion.samples,
        "label": labels,
        "predicted": scores.argmax(-1),
    }
    named = {f"score_{number}": scores[:, number] for number in range(scores.shape[1])}
    return pd.DataFrame({**columns, **named})
