"""Data sets: one file each, from raw files to prepared arrays."""
