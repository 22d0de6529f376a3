"""FPL: features are pulled to clusters of the prototypes that clients send, and to their mean.

Huang, Ye, Shi, Li, Du. Rethinking Federated Learning with Domain Shift: A Prototype View. CVPR
2023.

Family: class means. Exchanged: model, mean features by class. Local: nothing. Key: `tau`.

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
    Variables,
    cross_entropy,
    declare,
    recipe,
    trees,
    weighted_mean,
)
from fl.blocks.anchor_exchange import AnchorServer, anchors_after_training
from fl.blocks.anchors import Anchors
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
        base = recipe(context, terms=(cross_entropy, self.prototype_loss))
        participants = context.training.participants(context.participants)
        # First neighbours leave no cluster of one, so there are at most half as many clusters.
        max_clusters = max(1, participants // 2)

        def start(network: Network, variables: Variables, classes: int) -> Tensor:
            size = feature_width(network, variables["params"])
            return trees.leaves(variables["params"])[0].new_zeros((classes, max_clusters, size))

        def gather(previous: Tensor, uploads: Anchors) -> Tensor:
            return cluster_prototypes(uploads["means"], uploads["counts"], previous)

        return anchors_after_training(base, context, gather, initial=start)

    def prototype_loss(self, forward: Forward) -> Tensor:
        """Return contrast with all clusters plus distance to the class's mean cluster, a scalar."""
        server: AnchorServer = forward.server
        features, clusters = forward.output.features.flatten(1), server["anchors"]
        labels = forward.batch["y"]
        losses = contrast(features, labels, clusters, self.tau)
        return weighted_mean(losses + distance(features, labels, clusters), forward.batch)


def cluster_prototypes(prototypes: Tensor, counts: Tensor, previous: Tensor) -> Tensor:
    """Return the clusters of every class, [C, max_clusters, d]; missing clusters are zeros.

    Args:
        prototypes: Prototypes of clients, [K, C, d].
        counts: Numbers of samples by client and class, [K, C].
        previous: Clusters of the last round, for shape and type.
    """
    # In host memory, because each class reads numbers, for which a device would have to wait.
    prototypes, counts = prototypes.cpu(), counts.cpu()
    clusters = torch.zeros_like(previous, device="cpu")
    for label, holders in enumerate((counts > 0).T):
        vectors = prototypes[holders, label]
        if len(vectors):
            centres = cluster_means(vectors, finch(vectors))
            # Sorted, so that the order does not depend on that of clients.
            clusters[label, : len(centres)] = centres[centres.sum(1).argsort()]
    return clusters.to(previous.device)


def cluster_mask(clusters: Tensor) -> Tensor:
    """Whether each cluster exists, bool [C, max_clusters]; missing clusters are zeros."""
    return (clusters != 0).any(-1)


def contrast(features: Tensor, labels: Tensor, clusters: Tensor, tau: float) -> Tensor:
    """Return -log of the share of the class's clusters in exp(cos(z, c) / tau), [b]."""
    exists = cluster_mask(clusters)
    similar = torch.einsum(
        "bd,cmd->bcm", F.normalize(features, dim=-1), F.normalize(clusters, dim=-1)
    )
    # Finite, because the gradient of an infinity would be NaN for a class without a cluster.
    minimum = torch.finfo(similar.dtype).min / 4
    similar = torch.where(exists, similar / tau, minimum)
    of_class = similar[torch.arange(len(labels), device=labels.device), labels]
    losses = similar.flatten(1).logsumexp(1) - of_class.logsumexp(1)
    return torch.where(exists.any(-1)[labels], losses, 0)


def distance(features: Tensor, labels: Tensor, clusters: Tensor) -> Tensor:
    """Return the mean square over features of z minus the mean of its class's clusters, [b]."""
    exists = cluster_mask(clusters)
    centre = clusters.sum(1) / exists.sum(1).clamp(min=1)[:, None].to(clusters.dtype)
    distances = (features - centre[labels]).square().mean(-1)
    return torch.where(exists.any(-1)[labels], distances, 0)


def finch(points: Tensor) -> Tensor:
    """Cluster points [n, d] by cosines; returns cluster numbers, int64 [n], in host memory.

    Points are joined with their nearest ones, then the means of clusters, as long as each step
    leaves at least two clusters fewer. The result is the coarsest partition with more than one
    cluster; one cluster, if the first partition has no more.

    Sarfraz, Sharma, Stiefelhagen. Efficient Parameter-free Clustering Using First Neighbor
    Relations. CVPR 2019. arXiv:1902.11266. The authors' package needs scikit-learn and approximate
    neighbours, which are of no use for tens of prototypes.
    """
    points = points.detach().cpu()
    labels, decrease = first_neighbour_clusters(points), 2
    while decrease > 1:
        count = int(labels.max()) + 1
        coarser_labels = first_neighbour_clusters(cluster_means(points, labels))[labels]
        decrease = count - int(coarser_labels.max()) - 1
        if decrease < 1 or int(coarser_labels.max()) == 0:
            break
        labels = coarser_labels
    return labels


def first_neighbour_clusters(points: Tensor) -> Tensor:
    """Join points along chains of first neighbours; returns numbers of clusters, [n]."""
    count = len(points)
    if count == 1:
        return torch.zeros(1, dtype=torch.int64)
    unit = F.normalize(points.double(), dim=1)
    distances = 1 - unit @ unit.T
    distances.fill_diagonal_(torch.inf)
    groups = list(range(count))
    for point, neighbour in enumerate(distances.argmin(1).tolist()):
        old, new = groups[point], groups[neighbour]
        groups = [new if group == old else group for group in groups]
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return torch.tensor([numbers[group] for group in groups])


def cluster_means(points: Tensor, labels: Tensor) -> Tensor:
    """Return the mean point of every cluster, [clusters, d]."""
    membership = F.one_hot(labels).to(points.dtype)
    return (membership.T @ points) / membership.sum(0)[:, None]
