"""PyTorch where it has to be worked around: names of its own, draws by keys, out of memory."""
