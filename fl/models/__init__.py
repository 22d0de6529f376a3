"""Models, one file for each architecture."""
