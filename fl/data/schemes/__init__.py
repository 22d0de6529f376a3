"""Partition schemes: one file each, from labels to a partition table."""
