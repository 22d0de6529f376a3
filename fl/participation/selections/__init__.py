"""Selections of the clients of a round, one file each; see `fl.api.participation`."""
