"""Active federated learning: clients with large values are selected more often, some at random.

Goetz, Malik, Bui, Moon, Liu, Kumar. Active Federated Learning. NeurIPS 2019, workshop on federated
learning. arXiv:1909.12641.

Algorithm 1. The value of a client is v_k = sqrt(n_k) times its loss, from its last round; the loss
is the mean of that round's steps, which the client sends beside its upload, where the paper has the
loss of the received model. The `left_out` share of clients with the smallest values, and all
whose value is unknown, have probability 0, others proportional to exp(`alpha` v_k); a `uniform`
share of the round's clients is drawn from all that remain. If too few have a value, the rest is
drawn uniformly, too. For the same values the probabilities are those of the code with which Cho et
al. compared power-of-choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fl.api import ALL_TASKS, BuildContext, NonNegative, Offer, Selection, Share, Tree
from fl.api.participation import LOSS_BYTES
from fl.blocks.client_selection import draw, unknown_losses, with_losses


@dataclass(frozen=True)
class Active:
    """Active federated learning.

    Attributes:
        left_out: alpha_1, share of clients with the smallest values that are left out.
        alpha: alpha_2, how much more often clients with larger values are selected.
        uniform: alpha_3, share of a round's clients that are drawn uniformly.
    """

    left_out: Share = 0.75
    alpha: NonNegative = 0.01
    uniform: Share = 0.1

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> Selection:
        """Return the selection."""

        def select(memory: Any, offer: Offer) -> tuple[np.ndarray, Tree]:
            clients, generator = offer.clients, offer.generator
            losses = memory["losses"].numpy()[clients]
            is_known = np.isfinite(losses)
            values = np.where(is_known, np.sqrt(offer.sizes[clients]) * losses, -np.inf)
            left_out = np.argsort(values, kind="stable")[: int(self.left_out * len(clients))]
            values[left_out] = -np.inf
            weights = self.weights(values)
            by_value = min(int((1 - self.uniform) * offer.count), int((weights > 0).sum()))
            first = draw(generator, clients, weights, by_value)
            rest = np.setdiff1d(clients, first)
            others = generator.choice(rest, offer.count - by_value, replace=False)
            return np.concatenate([first, others]), memory

        return Selection(select, unknown_losses, with_losses, LOSS_BYTES)

    def weights(self, values: np.ndarray) -> np.ndarray:
        """Return exp(alpha_2 v_k) over its maximum; 0 for clients with the value -inf."""
        is_used = np.isfinite(values)
        if not is_used.any():
            return np.zeros(len(values))
        weights: np.ndarray = np.exp(self.alpha * (values - values[is_used].max()))
        return weights
