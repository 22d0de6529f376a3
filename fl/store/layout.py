"""Names of the files of finished and unfinished runs (see `fl.store.store`)."""

from __future__ import annotations

import re

RECORD, METRICS, WEIGHTS = "run.json", "metrics.parquet", "final.safetensors"
TRACES, PREDICTIONS = "traces.safetensors", "predictions.parquet"
RUN_FILES = (METRICS, WEIGHTS, TRACES, PREDICTIONS)
"""Files of a finished run in addition to its record; it always has the first one."""
OPTIONAL_FILES = (WEIGHTS, PREDICTIONS)
"""Files that a run has only if they are needed. A run without one is trained again for it."""
CHECKPOINTS, LEASE = "checkpoint", "lease.json"


def is_name(run: str) -> bool:
    """Whether ``run`` can be the name of a run, and of its folder."""
    return re.fullmatch(r"[A-Za-z0-9_-]+", run) is not None
