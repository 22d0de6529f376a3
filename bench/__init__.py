"""Benchmarks: ratios in one run, never timed assertions."""
