"""Data sets, their preparation as arrays, and partitions of their samples over clients."""
