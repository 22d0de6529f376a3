"""Loss-proportional: clients on which the model does worse are selected more often.

Goetz, Malik, Bui, Moon, Liu, Kumar. Active Federated Learning. NeurIPS 2019, workshop on federated
learning. arXiv:1909.12641.

The plain form of the paper's idea: a client's probability is proportional to the sum of its losses,
n_k F_k(w). The paper's own rule, with a softmax of other values, is `active`. With `losses: asked`
all clients that are there are sent the model and answer with their loss, which is counted. With
`losses: last` the mean loss of the steps of a client's last round counts, which the client sends
beside its upload; before its first round, the largest that is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fl.api import ALL_TASKS, BuildContext, Offer, Selection, Tree
from fl.api.participation import LOSS_BYTES
from fl.blocks.client_selection import draw, unknown_losses, with_losses


@dataclass(frozen=True)
class LossProportional:
    """Selection with probabilities proportional to sums of losses.

    Attributes:
        losses: `asked`: all clients are asked for their losses under the current model; `last`:
            their last training losses count.
    """

    losses: Literal["asked", "last"] = "asked"

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> Selection:
        """Return the selection."""
        if self.losses == "asked":
            return Selection(select_asked, asks_clients=True)
        return Selection(select_last, unknown_losses, with_losses, LOSS_BYTES)


def select_asked(memory: Any, offer: Offer) -> tuple[np.ndarray, Tree]:
    """Return clients drawn in proportion to their losses under the current model."""
    weights = offer.sizes[offer.clients] * offer.losses(offer.clients)
    return draw(offer.generator, offer.clients, weights, offer.count), {}


def select_last(memory: Any, offer: Offer) -> tuple[np.ndarray, Tree]:
    """Return clients drawn in proportion to their last training losses."""
    losses = memory["losses"].numpy()
    is_known = np.isfinite(losses)
    largest = losses[is_known].max() if is_known.any() else 1.0
    losses = np.where(is_known, losses, largest)[offer.clients]
    weights = offer.sizes[offer.clients] * losses
    return draw(offer.generator, offer.clients, weights, offer.count), memory
