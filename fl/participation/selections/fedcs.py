"""FedCS: of some random clients, all take part that finish before a deadline.

Nishio, Yonetani. Client Selection for Federated Learning with Heterogeneous Resources in Mobile
Edge. ICC 2019. arXiv:1804.08333.

Protocol 2, algorithm 3. The server asks random clients, as many as `participation` says (the
paper's K C), for their resources, and gives work to as many of them as finish in T_round. In the
paper clients share a channel and send one after the other, so a greedy rule decides in which order
they come. Here every client has a link of its own and sends when it is ready, so each that would
finish in time alone is in the largest set, and the order is without effect. If none would, the
quickest takes part. What clients say of their resources is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fl.api import ALL_TASKS, BuildContext, Offer, Positive, Selection, Tree


@dataclass(frozen=True)
class FedCS:
    """Selection of the clients that finish before a deadline.

    Attributes:
        deadline: T_round, seconds in which a client is to receive, train and send.
    """

    deadline: Positive

    tasks: ClassVar = ALL_TASKS
    needs_devices: ClassVar = True

    def build(self, context: BuildContext) -> Selection:
        """Return the selection."""

        def select(memory: Any, offer: Offer) -> tuple[np.ndarray, Tree]:
            assert offer.seconds is not None
            asked = offer.generator.choice(offer.clients, offer.count, replace=False)
            return in_time(asked, offer.seconds[asked], self.deadline), {}

        return Selection(select)


def in_time(clients: np.ndarray, seconds: np.ndarray, deadline: float) -> np.ndarray:
    """Return the clients that finish before a deadline; if there is none, the quickest."""
    selected: np.ndarray = clients[seconds <= max(deadline, seconds.min())]
    return selected
