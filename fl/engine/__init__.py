"""The rounds of a run, on any backend: what decides numbers, and nothing else."""
