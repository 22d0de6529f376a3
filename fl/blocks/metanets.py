"""Networks that predict how to personalise a model, and the normalisation they control.

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
    """Symmetric divergence of two normal distributions, the mean over channels; a scalar.

    It is half the sum of the Kullback-Leibler divergences in both directions, equation 3.

    Args:
        mean: Means of the first distribution, [channels].
        var: Variances of the first distribution, [channels].
        other_mean: Means of the second distribution, [channels].
        other_var: Variances of the second distribution, [channels].
        eps: A number that is added to the variances.
    """
    variance, other_variance = var + eps, other_var + eps
    # (one / other + other / one) / 4 - 1/2, in a form that loses no digits if both are near.
    spread = (variance - other_variance).square() / (variance * other_variance)
    shift = (mean - other_mean).square() * (1 / variance + 1 / other_variance)
    return ((spread + shift) / 4).mean()


def clamp_through(x: Tensor, low: float, high: float) -> Tensor:
    """Clamp x to [low, high]; gradients pass as if it were not clamped (straight-through)."""
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

    In training, the own statistics are those of the batch (with the biased variance); otherwise
    they are the running ones.

    Args:
        x: Features, [n, channels, ...].
        beta: The share of the own statistics.
        pretrained: The statistics of the stored model.
        running: The client's running statistics.
        training: Whether the pass is in training mode.
        momentum: The momentum of the running statistics.
        eps: A number that is added to the variance.

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
    """Return the statistics by which `mixed_batch_norm` normalises, and the next running ones."""
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
    """Three linear layers with ReLU between them; `clamp_through` bounds the outputs.

    Weights are a tree: ``"0"``, ``"1"`` and ``"2"`` with ``weight`` and ``bias``.

    Attributes:
        inputs: The number of inputs.
        outputs: The number of outputs.
        begin: The approximate initial outputs.
        high: The upper bound of outputs; the lower one is 0.
    """

    inputs: int
    outputs: int
    begin: float

    high: ClassVar[float]

    def __call__(self, weights: Tree, x: Tensor) -> Tensor:
        """Return outputs [outputs] for x [inputs]."""
        for number, layer in enumerate(weights.values()):
            x = F.linear(F.relu(x) if number else x, layer["weight"], layer["bias"])
        return self.bounded(x)

    @property
    def output_bias(self) -> float:
        """Initial biases of the last layer."""
        return self.begin

    def bounded(self, x: Tensor) -> Tensor:
        """Bound the outputs of the last layer."""
        return clamp_through(x, 0.0, self.high)

    def init(self, generator: torch.Generator, example: Tensor) -> Tree:
        """Draw Xavier's normal weights with a gain of .1, and set constant biases (appendix E)."""
        sizes, layers = (self.inputs, HIDDEN_WIDTH, HIDDEN_WIDTH, self.outputs), {}
        for number, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            normal = torch.randn(fan_out, fan_in, generator=generator, dtype=torch.float64)
            weight = normal * (INITIAL_GAIN * math.sqrt(2 / (fan_in + fan_out)))
            bias = torch.full((fan_out,), self.begin if number < 2 else self.output_bias)
            layers[str(number)] = {"weight": weight.to(example), "bias": bias.to(example)}
        return layers


@dataclass(frozen=True)
class BNNet(MetaNet):
    """Net from the divergences of a client's statistics, xi [layers], to beta [layers].

    Attributes:
        begin: The approximate initial outputs.
        sigmoid: Whether a sigmoid bounds outputs instead of a clamp (appendix E).
    """

    begin: float = 0.5
    sigmoid: bool = False

    high: ClassVar = 1.0

    @property
    def output_bias(self) -> float:
        """Initial biases of the last layer; with a sigmoid, its inverse at ``begin``."""
        return math.log(self.begin / (1 - self.begin)) if self.sigmoid else self.begin

    def bounded(self, x: Tensor) -> Tensor:
        """Bound the outputs of the last layer by a clamp or a sigmoid."""
        return torch.sigmoid(x) if self.sigmoid else super().bounded(x)


@dataclass(frozen=True)
class LRNet(MetaNet):
    """Net from means and deviations of layers' inputs, [2 layers], to rate factors, [tensors].

    There is one rate for each parameter tensor.
    """

    begin: float = 1.0

    high: ClassVar = 1000.0
