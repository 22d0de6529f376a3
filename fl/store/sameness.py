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
    import numpy as np

TOLERANCE = 1e-6
"""Numbers a and b are the same if abs(a - b) <= TOLERANCE * (1 + abs(b)), or if both are NaN."""


def differing(run: str, ours: Store, theirs: Store) -> str:
    """The first file that both have and whose numbers differ; empty if there is none."""
    for name in (METRICS, WEIGHTS, TRACES):
        entries = [store.record(run)["files"].get(name) for store in (ours, theirs)]
        if all(entries) and entries[0] != entries[1]:
            first, second = (dict(_arrays(store, run, name)) for store in (ours, theirs))
            if first.keys() != second.keys() or not all(
                _same(first[key], second[key]) for key in first
            ):
                return name
    return ""


def computed_apart(run: str, ours: Store, theirs: Store) -> str:
    """What of how two runs were computed differs and can change their rounding; empty if nothing
    does.
    """
    first, second = (_circumstances(store.record(run)) for store in (ours, theirs))
    return ", ".join(key for key in first if first[key] != second[key])


def _circumstances(record: Mapping[str, Any]) -> dict[str, Any]:
    execution, versions = record["execution"], record.get("versions", {})
    return {
        "stack": execution.get("stack"),
        **{key: execution.get(key) for key in ("backend", "device", "processes", "threads")},
        "processor": record.get("environment", {}).get("processor"),
        **{package: versions.get(package) for package in ("torch", "numpy")},
    }


def _arrays(store: Store, run: str, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """The columns of a run's metrics in one order of rows, or the leaves of its tensors."""
    if name == METRICS:
        rows = store.metrics(run).sort_values(KEY)
        yield from ((str(column), rows[column].to_numpy()) for column in rows)
    else:
        yield from _leaves(store.weights(run) if name == WEIGHTS else store.traces(run), "")


def _leaves(tree: Mapping[str, Any], above: str) -> Iterator[tuple[str, np.ndarray]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}/")
        else:
            yield f"{above}{key}", value.double().numpy()


def _same(ours: np.ndarray, theirs: np.ndarray) -> bool:
    import numpy as np

    if ours.shape != theirs.shape or ours.dtype.kind != "f":
        return np.array_equal(ours, theirs)
    return np.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
