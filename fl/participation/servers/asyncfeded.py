"""AsyncFedED: each upload counts the less the further the server has moved since it was sent.

Wang, Yang, He, Shi, Chen. AsyncFedED: Asynchronous Federated Learning with Euclidean Distance
based Adaptive Weight Aggregation. 2022. arXiv:2205.13797.

Staleness is gamma = |x_t - x_(t - tau)| / |Delta_i|, and the server's learning rate for an upload
is lam / (gamma + epsilon). The paper also gives each client more local steps the lower its gamma
was. That is left out: how long clients take, and so who arrives when, would depend on what they
learn, where here the times of a run are known before it. In ten updates from the same uploads, the
version in hugo94140/FedOpt gives the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor

from fl.api import (
    ALL_TASKS,
    ArrivedUploads,
    AsynchronousServer,
    BuildContext,
    Count,
    Positive,
    Tree,
)


@dataclass(frozen=True)
class AsyncFedED:
    """Aggregation by Euclidean distance.

    Attributes:
        concurrency: clients that train at once.
        lam: learning rate of the server times epsilon, for an upload from the newest version.
        epsilon: added to gamma: how fast the learning rate falls.
    """

    concurrency: Count = 20
    lam: Positive = 1.0
    epsilon: Positive = 1.0

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> AsynchronousServer:
        """Return the server."""
        change = partial(by_distance, lam=self.lam, epsilon=self.epsilon)
        return AsynchronousServer(change, 1, self.concurrency)


def by_distance(arrived: ArrivedUploads, lam: float, epsilon: float) -> tuple[Tensor, Tree]:
    """Return lam / (gamma + epsilon) times each client's change, [K, d]."""
    weights = ~arrived.statistics
    lengths = (arrived.rows * weights).norm(dim=1, keepdim=True)
    moved = (arrived.moves * weights).norm(dim=1, keepdim=True)
    # Multiplied by |Delta_i|, so that a client without any change counts as one.
    rate = lam * lengths / (moved + epsilon * lengths).clamp(min=1e-30)
    return arrived.with_own_statistics(rate * arrived.rows), arrived.memory
