"""Networks that say how a client should personalise a model, and the normalisation they steer.

Lee, Kim, Li, Qiu, Hospedales, Huszár, Lane. FedL2P: Federated Learning to Personalize. NeurIPS
2023. arXiv:2310.02420.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import Tree

Statistics = tuple[Tensor, Tensor]
"""Mean and variance by channel, [channels] each."""


def symmetric_kl(
    mean: Tensor, var: Tensor, other_mean: Tensor, other_var: Tensor, eps: float = 1e-5
) -> Tensor:
    """How far two normal distributions are apart, the mean over channels; a scalar.

    Half the sum of the Kullback-Leibler divergences in both directions, equation 3.

    Args:
        mean, var, other_mean, other_var: [channels].
        eps: Added to the variances.
    """
    variance, other_variance = var + eps, other_var + eps
    # (one / other + other / one) / 4 - 1/2, in a form that loses no digits where they are alike.
    spread = (variance - other_variance).square() / (variance * other_variance)
    shift = (mean - other_mean).square() * (1 / variance + 1 / other_variance)
    return ((spread + shift) / 4).mean()


def clamp_through(x: Tensor, low: float, high: float) -> Tensor:
    """x clamped to [low, high]; gradients pass as if it were not clamped (straight-through)."""
    return x.clamp(low, high).detach() + (x - x.detach())


def mixed_batch_norm(
    x: Tensor,
    beta: Tensor | float,
    pretrained: Statistics,
    running: Statistics,
    training: bool,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Tensor, Statistics]:
    """Batch normalisation by statistics (1 - beta) pretrained + beta own, equation 2.

    The own statistics are in training those of the batch (with the biased variance), otherwise the
    running ones.

    Args:
        x: [n, channels, ...].

    Returns:
        The normalised x, without scale and shift, and the running statistics afterwards: in
        training moved by ``momentum`` (with the unbiased variance, and without gradients),
        otherwise as they were.
    """
    (mean, var), running = mixed_statistics(x, beta, pretrained, running, training, momentum)
    shape = (-1, *[1] * (x.dim() - 2))
    return (x - mean.reshape(shape)) / (var.reshape(shape) + eps).sqrt(), running


def mixed_statistics(
    x: Tensor,
    beta: Tensor | float,
    pretrained: Statistics,
    running: Statistics,
    training: bool,
    momentum: float,
) -> tuple[Statistics, Statistics]:
    """The statistics by which `mixed_batch_norm` normalises, and the running ones afterwards."""
    statistics = running
    if training:
        dims = [d for d in range(x.dim()) if d != 1]
        statistics = (x.mean(dims), x.var(dims, unbiased=False))
        count = x.numel() // x.shape[1]
        batch_statistics = (
            statistics[0].detach(),
            statistics[1].detach() * (count / max(1, count - 1)),
        )
        running = _mixed_statistics(running, batch_statistics, momentum)
    return _mixed_statistics(pretrained, statistics, beta), running


def _mixed_statistics(old: Statistics, new: Statistics, share: Tensor | float) -> Statistics:
    mean, var = ((1 - share) * a + share * b for a, b in zip(old, new, strict=True))
    return mean, var


HIDDEN_WIDTH = 100
INITIAL_GAIN = 0.1


@dataclass(frozen=True)
class MetaNet:
    """Three linear layers with ReLU between them; the outputs are clamped by `clamp_through`.

    Weights are a tree: ``"0"``, ``"1"`` and ``"2"`` with ``weight`` and ``bias``.

    Attributes:
        inputs, outputs: How many numbers go in and come out.
        high: Outputs are between 0 and this.
        begin: About what the outputs are at first.
    """

    inputs: int
    outputs: int
    begin: float

    high: ClassVar[float]

    def __call__(self, weights: Tree, x: Tensor) -> Tensor:
        """[outputs] for x [inputs]."""
        for number, layer in enumerate(weights.values()):
            x = F.linear(F.relu(x) if number else x, layer["weight"], layer["bias"])
        return self.bounded(x)

    @property
    def last(self) -> float:
        """The biases of the last layer at first."""
        return self.begin

    def bounded(self, x: Tensor) -> Tensor:
        """The outputs from what the last layer gives."""
        return clamp_through(x, 0.0, self.high)

    def init(self, generator: torch.Generator, example: Tensor) -> Tree:
        """Xavier's normal weights with a gain of .1, and constant biases (appendix E)."""
        sizes, layers = (self.inputs, HIDDEN_WIDTH, HIDDEN_WIDTH, self.outputs), {}
        for number, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            normal = torch.randn(fan_out, fan_in, generator=generator, dtype=torch.float64)
            weight = normal * (INITIAL_GAIN * math.sqrt(2 / (fan_in + fan_out)))
            bias = torch.full((fan_out,), self.begin if number < 2 else self.last)
            layers[str(number)] = {"weight": weight.to(example), "bias": bias.to(example)}
        return layers


@dataclass(frozen=True)
class BNNet(MetaNet):
    """From the distances of a client's statistics, xi [layers], to beta [layers].

    Attributes:
        sigmoid: Whether outputs are bounded by a sigmoid and not by a clamp (appendix E).
    """

    begin: float = 0.5
    sigmoid: bool = False

    high: ClassVar = 1.0

    @property
    def last(self) -> float:
        """As of any net; for the sigmoid what it makes ``begin`` of."""
        return math.log(self.begin / (1 - self.begin)) if self.sigmoid else self.begin

    def bounded(self, x: Tensor) -> Tensor:
        """As of any net, or by the sigmoid."""
        return torch.sigmoid(x) if self.sigmoid else super().bounded(x)


@dataclass(frozen=True)
class LRNet(MetaNet):
    """From means and deviations of layers' inputs, [2 layers], to a factor for the rate of each
    parameter tensor, [tensors].
    """

    begin: float = 1.0

    high: ClassVar = 1000.0
