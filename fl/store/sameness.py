"""Whether two stores hold the same numbers of one run.

Two machines, or two backends, give the same run with other last digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fl.store.layout import METRICS, TRACES, WEIGHTS
from fl.store.run_check import KEY
from fl.store.store import Store

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

TOLERANCE = 1e-6
"""Numbers a and b are the same if abs(a - b) <= TOLERANCE * (1 + abs(b)), or if both are NaN."""


def differing(run: str, ours: Store, theirs: Store) -> str:
    """The first file that both have and whose numbers differ; empty if there is none."""
    for name, differ in (
        (METRICS, _metrics_differ),
        (WEIGHTS, _weights_differ),
        (TRACES, _traces_differ),
    ):
        entries = [store.record(run)["files"].get(name) for store in (ours, theirs)]
        if all(entries) and entries[0] != entries[1] and differ(run, ours, theirs):
            return name
    return ""


def _metrics_differ(run: str, ours: Store, theirs: Store) -> bool:
    import numpy as np

    one, other = (_in_order(store.metrics(run)) for store in (ours, theirs))
    keys = [*KEY, "n"]
    if not one[keys].equals(other[keys]):
        return True
    return not np.allclose(
        one["value"], other["value"], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True
    )


def _in_order(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sort_values(KEY, ignore_index=True)


def _weights_differ(run: str, ours: Store, theirs: Store) -> bool:
    return _tensors_differ(_leaves(ours.weights(run)), _leaves(theirs.weights(run)))


def _traces_differ(run: str, ours: Store, theirs: Store) -> bool:
    return _tensors_differ(ours.traces(run), theirs.traces(run))


def _leaves(tree: Mapping[str, Any]) -> dict[str, Tensor]:
    return dict(_paths(tree, ""))


def _paths(tree: Mapping[str, Any], above: str) -> Iterator[tuple[str, Tensor]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{above}{key}/")
        else:
            yield f"{above}{key}", value


def _tensors_differ(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    import torch

    if one.keys() != other.keys():
        return True
    return any(
        one[name].shape != other[name].shape
        or not torch.allclose(
            one[name].double(),
            other[name].double(),
            rtol=TOLERANCE,
            atol=TOLERANCE,
            equal_nan=True,
        )
        for name in one
    )
