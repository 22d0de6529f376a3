"""Comparison of a run's numbers in two stores.

Different machines and backends compute the same run with different last digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fl.store.run_check import KEY
from fl.store.run_record import METRICS, TRACES, WEIGHTS, RunRecord
from fl.store.store import Store

if TYPE_CHECKING:
    import numpy as np

    from fl.api.trees import Tree

TOLERANCE = 1e-6
"""Numbers a and b are equal if abs(a - b) <= TOLERANCE * (1 + abs(b)), or if both are NaN."""


def first_difference(run: str, store: Store, reference: Store) -> str:
    """Return the first file of both stores whose numbers differ; empty if there is none."""
    for name in (METRICS, WEIGHTS, TRACES):
        entries = [each.record(run)["files"].get(name) for each in (store, reference)]
        if all(entries) and entries[0] != entries[1]:
            first, second = (dict(_arrays(each, run, name)) for each in (store, reference))
            if first.keys() != second.keys() or not all(
                _are_equal(first[key], second[key]) for key in first
            ):
                return name
    return ""


def rounding_causes(run: str, store: Store, reference: Store) -> str:
    """Return differences in the computation of a run that change rounding; empty without any."""
    first, second = (
        _computation(RunRecord.from_json(each.record(run))) for each in (store, reference)
    )
    return ", ".join(key for key in first if first[key] != second[key])


def _computation(run: RunRecord) -> dict[str, str | int | bool | list[str] | None]:
    return {
        "stack": run.execution.stack,
        "backend": run.execution.backend,
        "device": run.execution.device,
        "processes": run.execution.processes,
        "threads": run.execution.threads,
        "processor": run.environment.get("processor"),
        **{package: run.versions.get(package) for package in ("torch", "numpy")},
    }


def _arrays(store: Store, run: str, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Return columns of a run's sorted metrics, or leaves of its tensors."""
    if name == METRICS:
        rows = store.metrics(run).sort_values(KEY)
        yield from ((str(column), rows[column].to_numpy()) for column in rows)
    else:
        yield from _leaves(store.weights(run) if name == WEIGHTS else store.traces(run), "")


def _leaves(tree: Tree, prefix: str) -> Iterator[tuple[str, np.ndarray]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value.double().numpy()


def _are_equal(array: np.ndarray, reference: np.ndarray) -> bool:
    import numpy as np

    if array.shape != reference.shape or array.dtype.kind != "f":
        return np.array_equal(array, reference)
    return np.allclose(array, reference, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
