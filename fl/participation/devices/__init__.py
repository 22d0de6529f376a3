"""Devices of clients, one file for each way to draw them; see `fl.api.participation`."""
