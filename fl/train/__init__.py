"""Computing a run without losing it: watched, checkpointed, resumed."""
