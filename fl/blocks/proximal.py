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
        centre: Entry of the client's work tree that has other weights in place of w_shared, if any.
    """

    mu: NonNegative
    centre: str = ""

    def __call__(self, forward: Forward) -> Tensor:
        """Return the term of a forward pass."""
        centre = self._centre(forward.server, forward.work)
        local = {name: forward.params[name] for name in centre}
        return self.mu / 2 * trees.squared_distance(local, centre)

    def add_gradient(self, server: Any, work: Any, params: Weights, grads: Weights) -> Tensor:
        """Add mu (w - w_shared) to the gradients, see `fl.api.term.WeightTerm`."""
        centre = self._centre(server, work)
        differences = {name: params[name] - fixed for name, fixed in centre.items()}
        for name in differences.keys() & grads.keys():
            grads[name].add_(differences[name], alpha=self.mu)
        return self.mu / 2 * trees.squared_norms(differences)

    def _centre(self, server: Any, work: Any) -> Weights:
        centre: Weights = work[self.centre] if self.centre else server["params"]
        return centre
