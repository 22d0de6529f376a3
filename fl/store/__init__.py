"""Finished and unfinished runs on disk."""
