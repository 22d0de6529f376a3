"""Runs that are what their names say, made without training."""

from __future__ import annotations

from typing import Any

import torch

from fl.base import identity
from fl.engine.evaluate import metrics_table
from fl.store.run_record import WEIGHTS
from fl.store.store import Store

CODE = {"core": "c0de", "method": "c0de", "model": "c0de", "dataset": "d-1", "partition": "p-1"}


def spec_of(seed: int, method: str = "fedavg", **hyper: Any) -> dict[str, Any]:
    return {
        "dataset": {"name": "digits"},
        "partition": {"name": "dirichlet", "clients": 8, "alpha": 0.3, "seed": 0, "val": 0.1},
        "model": {"name": "mlp", "hidden": [8], "norm": None},
        "method": {"name": method, **hyper},
        "terms": [],
        "training": {"rounds": 50, "lr": 0.05},
        "start": None,
        "seed": seed,
    }


def add(
    store: Store, seed: int = 0, value: float = 1.0, weights: bool = False, **choices: Any
) -> str:
    """Put a run into a store; its id. Runs of equal choices have one id, whatever their value."""
    spec = spec_of(seed, **choices)
    run = identity.run_id(identity.point_id(spec, CODE), seed)
    record = {
        **{"run": run, "state": "complete", "spec": spec, "code": CODE, "rounds": 50},
        **{"seconds": value, "execution": {"backend": "loop"}},
    }
    rows = metrics_table(
        [(r, 0, "train", "global", "loss", value + r / 3, 10) for r in range(1, 51)]
    )
    with store.open(run, (WEIGHTS,) if weights else ()) as work:
        assert work is not None
        tree = {"w": torch.full((3,), value)} if weights else None
        assert work.finish(record, rows, tree)
    return run
