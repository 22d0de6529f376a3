"""The code that a config can name: where it is, its documentation, and its hash."""
