"""Training on the server, on its own labelled samples (``server`` of a partition).

The server takes its steps like one client of a `fl.api.method.Pass`, on batches keyed by (seed,
round), and one run after another. So the steps are the same on every backend, for seeds that are
trained together, and if several processes train the clients.
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
from fl.engine.backends import Cohort, loop
from fl.engine.batches import schedule
from fl.engine.client_data import ClientData
from fl.engine.sample_arrays import Arrays

PURPOSE = "batches at the server"


def server_training(
    arrays: Arrays, data: ClientData, network: Network, training: Training, classes: int, seed: int
) -> TrainOnServer | None:
    """Return the function by which a run's server trains on its own samples.

    Args:
        arrays: The samples.
        data: The samples of each client and of the server.
        network: The network.
        training: Settings of training; gradients on the server are not clipped.
        classes: Number of classes.
        seed: Seed of the run.

    Returns:
        The function; None if the server has no samples.
    """
    samples = data.server
    if not len(samples):
        return None
    labels = arrays.labels(torch.from_numpy(samples).to(arrays.device)).cpu().numpy()

    def train_on_server(pass_: Pass, tree: Tree, round_: int) -> Tree:
        cohort = Cohort(
            clients=trees.stack([tree]),
            ids=torch.zeros(1, dtype=torch.int64),
            server={},
            server_is_stacked=False,
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
            training=replace(training, clip_norm=None),
        )
        with torch.enable_grad():
            return trees.take(loop(pass_, cohort).client_states, 0)

    return train_on_server
