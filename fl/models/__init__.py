"""Models: one file per architecture family."""
