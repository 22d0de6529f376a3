"""Anchors: the mean feature of every class, which clients share instead of samples.

FedFM (Ye et al. 2023) calls them anchors, FedProto (Tan et al. 2022) prototypes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    Batch,
    FedloomError,
    Forward,
    Network,
    Output,
    Term,
    Tree,
    Variables,
    weighted_mean,
)
from fl.api.tasks.classification import cross_entropy
from fl.blocks.distances import pairwise_distances
from fl.blocks.linear_layers import feature_width

GuidingLoss = Literal["contrastive", "squared"]
AnchorAverage = Literal["weighted", "uniform"]


class Anchors(TypedDict):
    """Upload of a client: means and counts of its classes.

    Attributes:
        means: Mean feature of each class, [C, d]; zeros for a class without a sample.
        counts: Its number of samples of each class, [C].
    """

    means: Tensor
    counts: Tensor


def class_sums(
    features: Tensor, labels: Tensor, weight: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """Sum features by class, [C, d], and weights by class, [C].

    Args:
        features: Features of a batch, [b, d].
        labels: The class of each sample, [b].
        weight: The weight of each sample, [b].
        classes: The number of classes, C.
    """
    membership = F.one_hot(labels, classes).to(features.dtype) * weight[:, None].to(features.dtype)
    return membership.T @ features, membership.sum(0)


def class_means(
    features: Tensor, labels: Tensor, weight: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """Average features by class, [C, d], and sum weights by class, [C].

    The mean of a class that does not occur is zero. The arguments are those of `class_sums`.
    """
    return means_from_sums(*class_sums(features, labels, weight, classes))


def means_from_sums(sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return means [..., C, d], zero where the count is 0, and the counts [..., C]."""
    return sums / torch.where(counts > 0, counts, 1)[..., None], counts


def weighted_anchors(class_means: Tensor, counts: Tensor) -> Tensor:
    """Average class means over clients by samples: sum_k n_kc m_kc / sum_k n_kc, [C, d].

    The result is zero for a class that no client holds.

    Args:
        class_means: The means m of each client and class, [K, C, d].
        counts: The samples n of each client and class, [K, C].
    """
    return means_from_sums((class_means * counts[..., None]).sum(0), counts.sum(0))[0]


def uniform_anchors(class_means: Tensor, counts: Tensor) -> Tensor:
    """Average means of classes over the clients that hold the class, each with the same weight."""
    return weighted_anchors(class_means, (counts > 0).to(class_means.dtype))


ANCHOR_AVERAGES = {"weighted": weighted_anchors, "uniform": uniform_anchors}


def update_anchors(old: Tensor, new: Tensor, counts: Tensor) -> Tensor:
    """Return the ``new`` anchors [C, d], with the ``old`` ones for classes that no client held.

    Args:
        old: The previous anchors, [C, d].
        new: The anchors of this round, [C, d].
        counts: Samples by client and class, [K, C].
    """
    return torch.where((counts.sum(0) > 0)[:, None], new, old)


def has_anchor(anchors: Tensor) -> Tensor:
    """Whether each class has an anchor, [C]; the anchor of the others is zero."""
    return (anchors != 0).any(-1)


def anchor_scores(features: Tensor, anchors: Tensor) -> Tensor:
    """Return -||z - a_c||^2, [b, C]; classes without an anchor come last."""
    distances = pairwise_distances(features, anchors)
    exists = has_anchor(anchors)
    farthest = torch.where(exists, distances, 0).amax(-1, keepdim=True) + 1
    return -torch.where(exists, distances, farthest)


def guiding_losses(features: Tensor, labels: Tensor, anchors: Tensor, tau: float) -> Tensor:
    """Contrastive guiding loss of every sample, [b]: the cross-entropy of cos(z, a_c) / tau over c.

    Classes without an anchor are left out of the softmax, and the loss of their samples is 0.

    Args:
        features: Features z, [b, d].
        labels: The class of each sample, [b].
        anchors: Anchors a, [C, d].
        tau: The temperature.
    """
    has_class = has_anchor(anchors)
    similarity = F.normalize(features, dim=-1) @ F.normalize(anchors, dim=-1).T / tau
    # Finite, because an infinity would have a gradient that is not a number.
    similarity = torch.where(has_class, similarity, torch.finfo(similarity.dtype).min / 2)
    losses = cross_entropy(similarity, labels)
    return torch.where(has_class[labels], losses, 0)


def contrastive_guiding(features: Tensor, labels: Tensor, anchors: Tensor, tau: float) -> Tensor:
    """Mean of `guiding_losses` over the batch, a scalar."""
    return guiding_losses(features, labels, anchors, tau).mean()


def squared_guiding(features: Tensor, labels: Tensor, anchors: Tensor) -> Tensor:
    """Squared distance ||z - a_y||^2 of every sample, [b]; 0 if the class has no anchor."""
    squared_distance = (features - anchors[labels]).square().sum(-1)
    return torch.where(has_anchor(anchors)[labels], squared_distance, 0)


def guiding_term(lam: float, tau: float, kind: GuidingLoss) -> Term:
    """Return lam times the loss that guides features to the ``anchors`` in the server's tree."""

    def term(forward: Forward) -> Tensor:
        if "anchors" not in forward.server:
            raise FedloomError(
                "fedfm: the method sends a different tree to each client, so no anchors are shared",
                advice="choose a method whose server sends the same to all clients",
            )
        features, anchors = forward.output.features.flatten(1), forward.server["anchors"]
        labels = forward.batch["y"]
        if kind == "contrastive":
            losses = guiding_losses(features, labels, anchors, tau)
        else:
            losses = squared_guiding(features, labels, anchors)
        return lam * weighted_mean(losses, forward.batch)

    return term


def towards_anchors(lam: float) -> Term:
    """Return lam times the mean square of the difference between features and their anchors."""

    def term(forward: Forward) -> Tensor:
        features = forward.output.features.flatten(1)
        distances = squared_guiding(features, forward.batch["y"], forward.server["anchors"])
        return lam * weighted_mean(distances / features.shape[1], forward.batch)

    return term


def zero_anchors(network: Network, variables: Variables, classes: int) -> Tensor:
    """Return zeros [C, d], which guide nothing, as anchors before the first ones are computed."""
    params = variables["params"]
    example: Tensor = next(iter(params.values()))
    return example.new_zeros((classes, feature_width(network, params)))


def features_of(output: Output) -> Tensor:
    """Return features as rows, [b, d]."""
    return output.features.flatten(1)


def sums_by_class(
    network: Network,
    variables: Tree,
    batch: Batch,
    classes: int,
    quantity: Callable[[Output], Tensor] = features_of,
) -> Tree:
    """Sum a quantity, such as features, and samples by class in evaluation mode, for a sweep."""
    output = network.eval(variables["params"], variables["buffers"], batch["x"])
    sums, counts = class_sums(quantity(output), batch["y"], batch["weight"], classes)
    return {"sums": sums, "counts": counts}


def local_anchors(totals: Tree) -> Anchors:
    """Return a client's upload: the mean feature and the number of samples of each class."""
    class_mean, counts = means_from_sums(totals["sums"], totals["counts"])
    return {"means": class_mean, "counts": counts}


def anchor_average(average: AnchorAverage) -> Callable[[Tensor, Anchors], Tensor]:
    """Return a function that makes the next anchors from the previous ones and the uploads.

    A class that no client holds keeps its previous anchor.
    """

    def update(old: Tensor, uploads: Anchors) -> Tensor:
        return update_anchors(
            old, ANCHOR_AVERAGES[average](uploads["means"], uploads["counts"]), uploads["counts"]
        )

    return update
