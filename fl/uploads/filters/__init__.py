"""Stages between clients' uploads and the server, one file each; see `fl.api.wire`."""
