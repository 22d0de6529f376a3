"""FedUV: predictions of a batch are kept spread over all classes, and features apart.

Son, Kim, Chung, Huang, Liu. FedUV: Uniformity and Variance for Heterogeneous Federated Learning.
CVPR 2024. arXiv:2402.18372.

Features are what goes into the classifier. As in the authors' code (sonhamin/FedUV, dd2e3c59), the
width of the kernel is the lower median of the batch's squared distances that are not 0, and has a
gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fl.api import BuildContext, Forward, NonNegative, Term


@dataclass(frozen=True)
class FedUV:
    """The penalty a mean_c max(0, g - std(p_c)) + b mean_{i<j} exp(-||z_i - z_j||^2 / m).

    Attributes:
        variance: Weight a of the variance of probabilities p; g is what a balanced batch of certain
            predictions has.
        uniformity: Weight b of the uniformity of features z; m is the median squared distance.
    """

    variance: NonNegative = 2.5
    uniformity: NonNegative = 0.5

    title: ClassVar = "FedUV"
    tasks: ClassVar = ("classification",)

    def build(self, context: BuildContext) -> Term:
        """Return the term; 0 for a batch of one sample."""

        def term(forward: Forward) -> Tensor:
            output, weight = forward.output, forward.batch["weight"]
            variance = missing_variance(output.outputs.softmax(-1), weight)
            uniformity = mean_similarity(output.features.flatten(1), weight)
            return self.variance * variance + self.uniformity * uniformity

        return term


def missing_variance(probabilities: Tensor, weight: Tensor) -> Tensor:
    """Return mean_c max(0, g - std_c) over a batch [b, C]; samples of weight 0 do not count."""
    is_sample = (weight > 0).to(probabilities.dtype)[:, None]
    n, classes = is_sample.sum(), probabilities.shape[1]
    mean = (is_sample * probabilities).sum(0) / n.clamp(min=1)
    squares = (is_sample * (probabilities - mean)).square().sum(0) / (n - 1).clamp(min=1)
    # A floor, because the root of 0 has no gradient.
    deviations = squares.clamp(min=torch.finfo(squares.dtype).eps ** 2).sqrt()
    # The deviation of a column of the identity, C rows of which one is 1.
    goal = 1 / math.sqrt(classes)
    value = (goal - deviations).clamp(min=0).mean()
    return torch.where(n > 1, value, 0 * value)


def mean_similarity(features: Tensor, weight: Tensor) -> Tensor:
    """Return the mean of exp(-||z_i - z_j||^2 / m) over pairs i < j of a batch [b, d]."""
    count = features.shape[0]
    if count < 2:
        return 0 * features.sum()
    rows, columns = torch.triu_indices(count, count, 1, device=features.device)
    squares = (features[rows] - features[columns]).square().sum(-1)
    is_pair = (weight[rows] > 0) & (weight[columns] > 0)
    is_apart = is_pair & (squares > 0)
    ordered = torch.where(is_apart, squares, float("inf")).sort().values
    index = ((is_apart.sum() - 1) // 2).clamp(min=0).reshape(1)
    median = ordered.gather(0, index)[0]
    has_median = is_apart.sum() > 0
    kernels = (-squares / torch.where(has_median, median, 1)).exp()
    value = torch.where(is_pair, kernels, 0).sum() / is_pair.sum().clamp(min=1)
    return torch.where(has_median, value, 0 * value)
