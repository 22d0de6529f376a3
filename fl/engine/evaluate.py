"""Evaluation: metrics of models on the samples of each client.

The shared model is evaluated on the samples of all clients in one pass. Personal models are
stacked: several clients with all of their samples at a time (`fl.engine.view_outputs`). Metrics are
computed by client afterwards. Compared with clients that are scored one after another, accuracy is
identical, unless the two largest outputs of a sample are equal except for rounding. Losses and
means over classes are equal to rounding, because sums may be computed in another order. The same
state gives exactly the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from fl.api.method import Method
from fl.api.network import Network
from fl.api.task import Task
from fl.api.tasks.classification import CLASSIFICATION, by_class
from fl.api.trees import Tree
from fl.base.schema import (
    ERRORS,
    METRIC_COLUMNS,
    PARTIAL_METRICS,
    PERSONAL,
    REWEIGHTED,
    UNSEEN,
)
from fl.engine.client_data import ClientData
from fl.engine.sample_arrays import Arrays
from fl.engine.state import State
from fl.engine.view_outputs import Portion, ViewOutputs, score_portions

MetricValues = dict[str, np.ndarray]
"""By metric, a value for each portion, [portions]."""

COLUMN_TYPES = {"round": np.int32, "client": np.int32, "value": np.float64, "n": np.int64}


def evaluate(
    method: Method,
    network: Network,
    state: State,
    arrays: Arrays,
    data: ClientData,
    round_: int,
    classes: int,
    splits: tuple[str, ...] = ("val", "test", UNSEEN),
    task: Task = CLASSIFICATION,
) -> pd.DataFrame:
    """Compute loss and the task's metrics of every client.

    Args:
        method: The method; each of its views is a ``stage``.
        network: The network.
        state: The state after the round.
        arrays: The samples.
        data: The samples of each client.
        round_: Number of the round.
        classes: Number of classes.
        splits: The splits to evaluate.
        task: The task.

    Returns:
        A table with the columns of `fl.base.schema.METRIC_COLUMNS`. A client without samples of a
        split has no row for it, nor for a metric that is not defined on its samples. A client that
        never takes part has no personal stage, because it has no own model.
    """

    def compute_metrics(values: Tree, sizes: np.ndarray) -> MetricValues:
        metrics = task.conclude(values, sizes, classes)
        in_unit = {name: metrics[name] * arrays.label_sd for name in ERRORS if name in metrics}
        return {**metrics, **in_unit}

    tables = []
    for stage, view in method.views.items():
        models = ViewOutputs(view, stage == PERSONAL, network, state, arrays, data, task)
        portions = [
            Portion(client, split, samples)
            for split in splits
            for client, samples in data.clients_with_samples(split)
            if models.serves(client)
        ]
        if portions:
            metrics = score_portions(models, portions, compute_metrics)
            if data.union_test_samples is not None and "test" in splits:
                metrics[REWEIGHTED] = _reweighted_accuracy(models, portions, arrays, data, classes)
            tables.append(_stage_table(round_, stage, portions, metrics, data))
    if len(tables) == 1:
        return tables[0]
    return pd.concat(tables, ignore_index=True) if tables else metrics_table([])


def _reweighted_accuracy(
    models: ViewOutputs, portions: list[Portion], arrays: Arrays, data: ClientData, classes: int
) -> np.ndarray:
    """Return the accuracy on all clients' test samples, weighted by each client's classes.

    Each class has the weight of its share among the client's training samples. The result is
    [portions]; it is NaN for other splits than ``test``, and if no sample has a class on which the
    client trains.
    """
    accuracy = np.full(len(portions), np.nan)
    test_indices = [i for i, portion in enumerate(portions) if portion.split == "test"]
    if test_indices and data.union_test_samples is not None:
        union_portions = [
            Portion(portions[i].client, "test", data.union_test_samples) for i in test_indices
        ]
        counts = score_portions(models, union_portions, partial(_class_counts, classes=classes))
        for row, i in enumerate(test_indices):
            train = data.samples["train"][portions[i].client]
            labels = arrays.labels(torch.from_numpy(train).to(arrays.device)).cpu().numpy()
            train_counts = np.bincount(labels, minlength=classes)
            accuracy[i] = weighted_accuracy(
                counts["correct"][row], counts["total"][row], train_counts
            )
    return accuracy


def _class_counts(values: Tree, sizes: np.ndarray, classes: int) -> MetricValues:
    """Count correct and all samples of each portion by class, [portions, classes] each."""
    is_correct, label = (values[key].cpu().numpy() for key in ("correct", "label"))
    correct, total = by_class(is_correct, label, sizes, classes)
    return {"correct": correct, "total": total}


def _stage_table(
    round_: int, stage: str, portions: list[Portion], metrics: MetricValues, data: ClientData
) -> pd.DataFrame:
    """Return a row for every portion and metric, portion after portion."""
    names, grid = list(metrics), np.stack(list(metrics.values()), axis=1)
    n = np.repeat([[len(portion.samples)] for portion in portions], len(names), axis=1)
    if REWEIGHTED in metrics and data.union_test_samples is not None:
        n[:, names.index(REWEIGHTED)] = len(data.union_test_samples)
    has_value = ~(np.isnan(grid) & np.isin(names, PARTIAL_METRICS))
    row, column = np.nonzero(has_value)
    splits = list(dict.fromkeys(portion.split for portion in portions))
    split = np.array([splits.index(portion.split) for portion in portions])
    return _typed_table(
        {
            "round": np.full(len(row), round_),
            "client": np.array([portion.client for portion in portions])[row],
            "split": _text_column(split[row], splits),
            "stage": _text_column(np.zeros(len(row), np.int64), [stage]),
            "metric": _text_column(column, names),
            "value": grid[has_value],
            "n": n[has_value],
        }
    )


def weighted_accuracy(correct: np.ndarray, total: np.ndarray, weights: np.ndarray) -> float:
    """Compute sum_c w_c correct_c / sum_c w_c total_c.

    As in the released code of FedSaC, a sample has the weight of its class at the client.

    Args:
        correct: Correctly predicted samples of each class, [classes].
        total: Samples of each class, [classes].
        weights: Weights w of the classes: a client's training samples by class, [classes].

    Returns:
        The accuracy; NaN if no sample has a class with a weight.
    """
    denominator = (total * weights).sum()
    return float((correct * weights).sum() / denominator) if denominator else float("nan")


def metrics_table(
    rows: Sequence[tuple[int, int, str, str, str, float, int]],
) -> pd.DataFrame:
    """Return a table of metrics from rows in the order of `fl.base.schema.METRIC_COLUMNS`."""
    values = list(zip(*rows, strict=True)) or [()] * len(METRIC_COLUMNS)
    columns: dict[str, Any] = dict(zip(METRIC_COLUMNS, values, strict=True))
    for name in columns.keys() - COLUMN_TYPES.keys():
        texts = list(dict.fromkeys(columns[name]))
        code_by_text = {text: code for code, text in enumerate(texts)}
        codes = np.array([code_by_text[text] for text in columns[name]], np.int64)
        columns[name] = _text_column(codes, texts)
    return _typed_table(columns)


def _typed_table(columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return a table of columns: arrays of numbers, and results of `_text_column`."""
    return pd.DataFrame(
        {
            name: np.asarray(columns[name], COLUMN_TYPES[name])
            if name in COLUMN_TYPES
            else columns[name]
            for name in METRIC_COLUMNS
        }
    )


def _text_column(codes: np.ndarray, texts: Sequence[str]) -> Any:
    """Return a column of texts with few different values; much faster than from a list of all.

    ``codes`` are the indices of the rows' texts.
    """
    return _text_array(tuple(texts)).take(codes)


@lru_cache(maxsize=64)
def _text_array(texts: tuple[str, ...]) -> Any:
    """Return the texts as the array type that this version of pandas uses for texts."""
    return pd.Series([*texts, ""]).array
