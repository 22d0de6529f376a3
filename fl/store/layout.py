"""The names of a run's files, finished or not (see `fl.store.store`)."""

RECORD, METRICS, WEIGHTS = "run.json", "metrics.parquet", "final.safetensors"
TRACES = "traces.safetensors"
KEPT = (METRICS, WEIGHTS, TRACES)
"""The files that a finished run may have beside its record; the first of them it always has."""
CHECKPOINTS, LEASE, FAILED = "checkpoint", "lease.json", "failed.json"
