"""Proximal term, which holds weights near those that the server sent."""

from __future__ import annotations

from torch import Tensor

from fl.api import Forward, NonNegative, Term, trees


def proximal_term(mu: NonNegative) -> Term:
    """Return (mu/2) ||w - w_shared||^2 over the shared parameters (FedProx, equation 2)."""

    def term(forward: Forward) -> Tensor:
        shared = forward.shared["params"]
        local = {name: forward.params[name] for name in shared}
        return mu / 2 * trees.squared_distance(local, shared)

    return term
