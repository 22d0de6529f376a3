"""FPL: features are pulled to clusters of the prototypes that clients send, and to their mean.

Huang, Ye, Shi, Li, Du. Rethinking Federated Learning with Domain Shift: A Prototype View. CVPR
2023.

Prototypes are a class's mean features on a client, clustered by FINCH. As in the released code, the
clusters are its coarsest partition with more than one cluster, and the distance to a class's mean
cluster is the mean square over features. Prototypes are of the model just trained, in evaluation
mode; in the released code they are means of what the steps of the last epoch saw. A round's
prototypes are of its own clients; a class that none of them holds has none, and its samples are not
pulled.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    BuildContext,
    Forward,
    Method,
    Network,
    Positive,
    Tree,
    cross_entropy,
    declare,
    recipe,
    trees,
    weighted_mean,
)
from fl.blocks.anchor_exchange import anchors_after_training
from fl.blocks.finch_clustering import cluster_means, finch
from fl.blocks.linear_layers import feature_width


@declare("global")
class FPL:
    """FedAvg with contrast to clustered prototypes.

    Attributes:
        tau: Temperature of the contrast with clusters (the released code: .02).
    """

    tau: Positive = 0.02

    def build(self, context: BuildContext) -> Method:
        """FedAvg with two more terms, whose clients send prototypes beside their models."""
        base = recipe(context, terms=(cross_entropy, self.pulled))
        drawn = max(1, round(context.training.participation * context.participants))
        # First neighbours leave no cluster of one, so that there are at most half as many.
        most = max(1, drawn // 2)

        def start(network: Network, variables: Tree, classes: int) -> Tensor:
            size = feature_width(network, variables["params"])
            return trees.leaves(variables["params"])[0].new_zeros((classes, most, size))

        def gather(old: Tensor, sent: Tree) -> Tensor:
            return clustered(sent["means"], sent["counts"], old)

        return anchors_after_training(base, context, gather, initial=start)

    def pulled(self, forward: Forward) -> Tensor:
        """The contrast with the clusters of all classes, and the distance to the class's mean
        cluster.
        """
        features, clusters = forward.output.features.flatten(1), forward.shared["anchors"]
        labels = forward.batch["y"]
        losses = contrast(features, labels, clusters, self.tau)
        return weighted_mean(losses + distance(features, labels, clusters), forward.batch)


def clustered(prototypes: Tensor, counts: Tensor, like: Tensor) -> Tensor:
    """The clusters of every class, in the shape of ``like``, [C, most, d]; zeros where there is
    none.

    Args:
        prototypes: Of clients, [K, C, d].
        counts: Of their samples, [K, C].
    """
    # In host memory, as each class asks for numbers; a device would be waited for as often.
    prototypes, counts = prototypes.cpu(), counts.cpu()
    clusters = torch.zeros_like(like, device="cpu")
    for label, holders in enumerate((counts > 0).T):
        vectors = prototypes[holders, label]
        if len(vectors):
            centres = cluster_means(vectors, finch(vectors))
            # In an order of their own, whatever that of clients is.
            clusters[label, : len(centres)] = centres[centres.sum(1).argsort()]
    return clusters.to(like.device)


def there(clusters: Tensor) -> Tensor:
    """Which places have a cluster, [C, most]; the others are zeros."""
    return (clusters != 0).any(-1)


def contrast(features: Tensor, labels: Tensor, clusters: Tensor, tau: float) -> Tensor:
    """-log of the share of the own class's clusters in exp(cos(z, c) / tau), [b]; 0 without one."""
    some = there(clusters)
    similar = torch.einsum(
        "bd,cmd->bcm", F.normalize(features, dim=-1), F.normalize(clusters, dim=-1)
    )
    # Finite, so that a class without a cluster gives no infinity whose gradient is not a number.
    least = torch.finfo(similar.dtype).min / 4
    similar = torch.where(some, similar / tau, least)
    of_class = similar[torch.arange(len(labels), device=labels.device), labels]
    losses = similar.flatten(1).logsumexp(1) - of_class.logsumexp(1)
    return torch.where(some.any(-1)[labels], losses, 0)


def distance(features: Tensor, labels: Tensor, clusters: Tensor) -> Tensor:
    """The mean square over features of z less the mean of its class's clusters, [b]."""
    some = there(clusters)
    centre = clusters.sum(1) / some.sum(1).clamp(min=1)[:, None].to(clusters.dtype)
    apart = (features - centre[labels]).square().mean(-1)
    return torch.where(some.any(-1)[labels], apart, 0)
