"""Upload filters, which change what clients send, one file each; see `fl.api.uploads`."""
