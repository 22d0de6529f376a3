"""The code that a config can name: where it is, what it says of itself, and its hash."""
