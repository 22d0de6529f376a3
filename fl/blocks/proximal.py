"""Proximal term, which holds weights near those that the server sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fl.api import Forward, NonNegative, Weights, trees


@dataclass(frozen=True)
class ProximalTerm:
    """(mu/2) ||w - w_shared||^2 over the shared parameters (FedProx, equation 2).

    Attributes:
        mu: Weight of the term.
    """

    mu: NonNegative

    def __call__(self, forward: Forward) -> Tensor:
        """Return the term of a forward pass."""
        shared = forward.shared["params"]
        local = {name: forward.params[name] for name in shared}
        return self.mu / 2 * trees.squared_distance(local, shared)

    def add_gradient(self, server: Any, params: Weights, grads: Weights) -> Tensor:
        """Add mu (w - w_shared) to the gradients, see `fl.api.term.WeightTerm`."""
        differences = {name: params[name] - shared for name, shared in server["params"].items()}
        for name in differences.keys() & grads.keys():
            grads[name].add_(differences[name], alpha=self.mu)
        return self.mu / 2 * trees.squared_norms(differences)
