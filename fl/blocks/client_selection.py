"""Random clients by weight, and what a server remembers of clients' losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fl.api.participation import Outcome
from fl.api.trees import Tree

LAST = 1e-300
"""A weight with which a client comes after all others."""


def draw(
    generator: np.random.Generator, clients: np.ndarray, weights: np.ndarray, count: int
) -> np.ndarray:
    """Draw different clients, each in proportion to its weight among those that are left.

    Clients whose weight is not above 0 come after all others, in random order.

    Args:
        generator: Random numbers.
        clients: The clients to draw from, int64 [n].
        weights: Their weights, [n].
        count: Number of clients to draw, at most n.

    Returns:
        The clients in the order in which they are drawn, int64 [count].
    """
    # Of exponential times with these rates, the smallest are a draw without replacement.
    times = generator.exponential(size=len(clients)) / np.where(weights > 0, weights, LAST)
    drawn: np.ndarray = clients[np.argsort(times)[:count]]
    return drawn


def unknown_losses(clients: int) -> Tree:
    """Return a memory in which the last training loss of every client is unknown, which is inf."""
    return {"losses": torch.full((clients,), np.inf, dtype=torch.float64)}


def with_losses(memory: Any, outcome: Outcome) -> Tree:
    """Return a memory with the training losses of a round's clients."""
    losses = memory["losses"].clone()
    losses[torch.from_numpy(outcome.clients)] = torch.from_numpy(outcome.losses)
    return {**memory, "losses": losses}
