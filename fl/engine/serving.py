"""Training on the server, on labelled samples that it holds itself (a partition's ``server``).

The server takes its steps as one client of a `fl.api.method.Pass` would, on batches keyed by (seed,
round), and one run after another: so they are the same on every backend, for seeds that are trained
together, and where several processes train the clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fl.api import trees
from fl.api.method import Pass
from fl.api.network import Network
from fl.api.protocols import Serve
from fl.api.training import Training, learning_rate
from fl.api.trees import Tree
from fl.engine.arrays import Arrays
from fl.engine.backends import Cohort, loop
from fl.engine.batches import schedule
from fl.engine.client_data import ClientData

PURPOSE = "batches at the server"


@dataclass(frozen=True)
class Serving:
    """A `fl.api.protocols.Serve` over the samples that a partition gives the server."""

    arrays: Arrays
    client_data: ClientData
    network: Network
    training: Training
    classes: int
    seed: int

    def __call__(self, pass_: Pass, tree: Tree, round_: int) -> tuple[dict[str, Any], Any]:
        """See `fl.api.protocols.Serve`."""
        own, device = self.client_data.server, self.arrays.device
        drawn = schedule(
            *([own], [0], self.training, self.seed, round_, PURPOSE),
            sampling=pass_.sampling,
            labels=[self.arrays.labels(torch.from_numpy(own).to(device)).cpu().numpy()],
            classes=self.classes,
            keyed=self.network.random or self.arrays.random,
            refreshes=pass_.refreshes,
        )
        cohort = Cohort(
            clients=trees.stack([tree]),
            ids=torch.zeros(1, dtype=torch.int64),
            server={},
            several=False,
            schedule=drawn,
            arrays=self.arrays,
            round=round_,
            lr=learning_rate(self.training, round_),
        )
        with torch.enable_grad():
            done = loop(pass_, cohort)
        return trees.take(done.kept, 0), trees.take(done.uploads, 0)


def serving(
    arrays: Arrays, data: ClientData, network: Network, training: Training, classes: int, seed: int
) -> Serve | None:
    """How a run's server trains; None if it holds no samples."""
    if not len(data.server):
        return None
    return Serving(arrays, data, network, training, classes, seed)
