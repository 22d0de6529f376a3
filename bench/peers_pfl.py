"""The workloads with pfl: its federated averaging and simulation, with PyTorch.

A client's batches are the same in every epoch. Running averages of batch normalisation stay in the
one model that all clients train in turn; its weights are averaged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from bench.workloads import CLASSES, LR, MOMENTUM, Workload


class Net(nn.Sequential):
    """Layers with what pfl asks for beside: a loss, and metrics, of which nothing is wanted."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean over a batch."""
        return F.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """None, so that the evaluation before round 0 costs nothing."""
        return {}


def mlp() -> list[nn.Module]:
    """60-20-10."""
    return [nn.Linear(60, 20), nn.ReLU(), nn.Linear(20, CLASSES)]


def lenet() -> list[nn.Module]:
    """As in `fl.models.lenet`."""
    layers: list[nn.Module] = []
    for before, after in ((3, 6), (6, 16)):
        layers += [nn.Conv2d(before, after, 5), nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    for before, after in ((400, 120), (120, 84)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return [*layers, nn.Linear(84, CLASSES)]


def cnn() -> list[nn.Module]:
    """As in `fl.models.cnn`."""
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32)):
        layers.append(nn.Conv2d(before, after, 3, padding=1, bias=False))
        layers += [nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return [*layers, nn.Flatten(), nn.Linear(32 * 2 * 2, CLASSES)]


def plain() -> list[nn.Module]:
    """As in `fl.models.cnn`, without batch normalisation."""
    return [layer for layer in cnn() if not isinstance(layer, nn.BatchNorm2d)]


NETS = {"W1": mlp, "W2": lenet, "W3": cnn, "W3-plain": plain}


def begin(name: str, work: Workload, steps: int) -> Callable[[], list[np.ndarray]]:
    """What trains a round, of ``steps`` for each client, and returns the weights after it."""
    parts = (torch.from_numpy(a).tensor_split(work.clients) for a in work.draw())
    held = [PyTorchTensorDataset(pair) for pair in zip(*parts, strict=True)]
    data = FederatedDataset(held.__getitem__, MinimizeReuseUserSampler(range(work.clients)))
    backend = SimulatedBackend(training_data=data, val_data=data)
    net = Net(*NETS[name]())

    def momentum(weights: object, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(weights, lr=lr, momentum=MOMENTUM)

    model = PyTorchModel(net, momentum, torch.optim.SGD(net.parameters(), lr=1.0))
    epochs = steps * work.batch // work.samples
    local = NNTrainHyperParams(
        local_batch_size=work.batch,
        local_num_epochs=epochs if epochs > 1 else None,
        local_num_steps=None if epochs > 1 else steps,
        local_learning_rate=LR,
    )
    algorithm = FederatedAveraging()
    upto = NNAlgorithmParams(
        central_num_iterations=0,
        evaluation_frequency=10**9,
        train_cohort_size=work.clients,
        val_cohort_size=None,
    )

    def train() -> list[np.ndarray]:
        nonlocal upto  # run goes on from where it stopped
        upto = replace(upto, central_num_iterations=upto.central_num_iterations + 1)
        algorithm.run(upto, backend, model, local, send_metrics_to_platform=False)
        return [weights.detach().numpy() for weights in net.parameters()]

    return train
