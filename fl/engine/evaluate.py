"""Evaluation: the metrics of a model on each client's data.

The shared model passes once over the samples of all clients; personal ones are stacked, several
clients with all of their samples at a time (`fl.engine.scored`). Metrics are taken by client
after that. Beside clients scored one after another, accuracy is equal to the bit unless a sample's
two largest outputs are equal but for rounding; losses and means over classes are equal to rounding,
as products of more samples, or of a stack, and means may be summed in another order. The same state
gives the same numbers to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from fl.base.schema import METRIC_COLUMNS, PERSONAL, REWEIGHTED, UNSEEN
from fl.engine.arrays import Arrays
from fl.engine.client_data import ClientData
from fl.engine.scored import Portion, Scored, scored
from fl.engine.state import State

Values = dict[str, np.ndarray]

TYPES = {"round": np.int32, "client": np.int32, "value": np.float64, "n": np.int64}


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
    """Loss and the task's metrics of every client, in the columns of
    `fl.base.schema.METRIC_COLUMNS`.

    Each view of the method is one ``stage``. A split without samples of a client gives no row, and
    neither does the personal stage of a client that never takes part, because it has no model.
    """

    def conclude(seen: Tree, sizes: np.ndarray) -> Values:
        return task.conclude(seen, sizes, classes)

    tables = []
    for stage, view in method.views.items():
        models = Scored(view, stage == PERSONAL, network, state, arrays, data, task)
        portions = [
            Portion(client, split, samples)
            for split in splits
            for client, samples in data.having(split)
            if models.serves(client)
        ]
        if portions:
            values = scored(models, portions, conclude)
            if data.everywhere is not None and "test" in splits:
                values[REWEIGHTED] = _reweighted(models, portions, arrays, data, classes)
            tables.append(_table(round_, stage, portions, values, data))
    if len(tables) == 1:
        return tables[0]
    return pd.concat(tables, ignore_index=True) if tables else as_rows([])


def _reweighted(
    models: Scored, portions: list[Portion], arrays: Arrays, data: ClientData, classes: int
) -> np.ndarray:
    """Of each portion of the split ``test`` the accuracy on the test samples of all clients, each
    class by its share among the client's training samples, [portions]; NaN for other splits, and
    where no sample is of a class that the client trains on.
    """
    shares = np.full(len(portions), np.nan)
    there = [i for i, portion in enumerate(portions) if portion.split == "test"]
    if there and data.everywhere is not None:
        whole = [Portion(portions[i].client, "test", data.everywhere) for i in there]
        counts = scored(models, whole, partial(_counted, classes=classes))
        for row, i in enumerate(there):
            train = data.samples["train"][portions[i].client]
            labels = arrays.labels(torch.from_numpy(train).to(arrays.device)).cpu().numpy()
            trained = np.bincount(labels, minlength=classes)
            shares[i] = weighted_share(counts["right"][row], counts["there"][row], trained)
    return shares


def _counted(seen: Tree, sizes: np.ndarray, classes: int) -> Values:
    correct, label = (seen[key].cpu().numpy() for key in ("correct", "label"))
    right, there = by_class(correct, label, sizes, classes)
    return {"right": right, "there": there}


def _table(
    round_: int, stage: str, portions: list[Portion], values: Values, data: ClientData
) -> pd.DataFrame:
    """Rows for every portion, metric after metric."""
    names, grid = list(values), np.stack(list(values.values()), axis=1)
    n = np.repeat([[len(portion.samples)] for portion in portions], len(names), axis=1)
    kept = np.ones(grid.shape, bool)
    if REWEIGHTED in values and data.everywhere is not None:
        n[:, names.index(REWEIGHTED)] = len(data.everywhere)
        kept[:, names.index(REWEIGHTED)] = ~np.isnan(values[REWEIGHTED])
    row, column = np.nonzero(kept)
    splits = list(dict.fromkeys(portion.split for portion in portions))
    split = np.array([splits.index(portion.split) for portion in portions])
    return table(
        {
            "round": np.full(len(row), round_),
            "client": np.array([portion.client for portion in portions])[row],
            "split": named(split[row], splits),
            "stage": named(np.zeros(len(row), np.int64), [stage]),
            "metric": named(column, names),
            "value": grid[kept],
            "n": n[kept],
        }
    )


def weighted_share(right: np.ndarray, there: np.ndarray, shares: np.ndarray) -> float:
    """sum_c p_c right_c / sum_c p_c n_c, with p_c the share of class c in ``shares``.

    As in the released code of FedSaC, a sample counts as much as its class does for the client.

    Args:
        right: Samples of each class that are predicted as such, [classes].
        there: Samples of each class, [classes].
        shares: A client's training samples by class, [classes].

    Returns:
        NaN if no sample is of a class that the client holds.
    """
    total = (there * shares).sum()
    return float((right * shares).sum() / total) if total else float("nan")


def as_rows(rows: Sequence[tuple[int, int, str, str, str, float, int]]) -> pd.DataFrame:
    """A table of rows, each in the order of the columns."""
    given = list(zip(*rows, strict=True)) or [()] * len(METRIC_COLUMNS)
    columns: dict[str, Any] = dict(zip(METRIC_COLUMNS, given, strict=True))
    for name in columns.keys() - TYPES.keys():
        names = list(dict.fromkeys(columns[name]))
        place = {text: code for code, text in enumerate(names)}
        columns[name] = named(np.array([place[text] for text in columns[name]], np.int64), names)
    return table(columns)


def table(columns: dict[str, Any]) -> pd.DataFrame:
    """A table of columns: arrays, and of texts what `named` gives."""
    return pd.DataFrame(
        {
            name: np.asarray(columns[name], TYPES[name]) if name in TYPES else columns[name]
            for name in METRIC_COLUMNS
        }
    )


def named(codes: np.ndarray, names: Sequence[str]) -> Any:
    """A column of texts, of which few differ: a hundred times as fast as from a list of them all.

    Args:
        codes: Of each row, its place among the ``names``.
    """
    return _texts(tuple(names)).take(codes)


@lru_cache(maxsize=64)
def _texts(names: tuple[str, ...]) -> Any:
    """The names as pandas takes texts anywhere, whatever its version makes of them."""
    return pd.Series([*names, ""]).array
