"""Training on the server, on labelled samples that it holds itself (a partition's ``server``).

The server takes its steps as one client of a `fl.api.method.Pass` would, on batches keyed by (seed,
round), and one run after another: so they are the same on every backend, for seeds that are trained
together, and where several processes train the clients.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fl.api import trees
from fl.api.method import Pass
from fl.api.network import Network
from fl.api.protocols import TrainOnServer
from fl.api.training import Training
from fl.api.trees import Tree
from fl.engine.arrays import Arrays
from fl.engine.backends import Cohort, loop
from fl.engine.batches import schedule
from fl.engine.client_data import ClientData

PURPOSE = "batches at the server"


def serving(
    arrays: Arrays, data: ClientData, network: Network, training: Training, classes: int, seed: int
) -> TrainOnServer | None:
    """How a run's server trains on its samples; None if a partition gives it none."""
    samples = data.server
    if not len(samples):
        return None
    labels = arrays.labels(torch.from_numpy(samples).to(arrays.device)).cpu().numpy()

    def serve(pass_: Pass, tree: Tree, round_: int) -> Tree:
        cohort = Cohort(
            clients=trees.stack([tree]),
            ids=torch.zeros(1, dtype=torch.int64),
            server={},
            several=False,
            schedule=schedule(
                [samples],
                [0],
                training,
                seed,
                round_,
                PURPOSE,
                sampling=pass_.sampling,
                labels=[labels],
                classes=classes,
                keyed=network.random or arrays.random,
                refreshes=pass_.refreshes,
            ),
            arrays=arrays,
            round=round_,
            # Gradients of the server are not clipped.
            training=replace(training, clip_norm=None),
        )
        with torch.enable_grad():
            return trees.take(loop(pass_, cohort).kept, 0)

    return serve
