"""Asynchronous servers, one file each; see `fl.api.participation`."""
