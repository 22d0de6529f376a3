"""The names of a run's files, finished or not (see `fl.store.store`)."""

from __future__ import annotations

import re

RECORD, METRICS, WEIGHTS = "run.json", "metrics.parquet", "final.safetensors"
TRACES, PREDICTIONS = "traces.safetensors", "predictions.parquet"
KEPT = (METRICS, WEIGHTS, TRACES, PREDICTIONS)
"""The files that a finished run may have beside its record; the first of them it always has."""
ON_DEMAND = (WEIGHTS, PREDICTIONS)
"""Those that it has where they are asked for. A run that lacks one is trained again for it."""
CHECKPOINTS, LEASE = "checkpoint", "lease.json"


def is_name(run: str) -> bool:
    """Whether ``run`` can be the name of a run, and so of a folder."""
    return re.fullmatch(r"[A-Za-z0-9_-]+", run) is not None
