"""FINCH: clusters by each point's first neighbour, without a parameter to choose.

Sarfraz, Sharma, Stiefelhagen. Efficient Parameter-free Clustering Using First Neighbor Relations.
CVPR 2019. arXiv:1902.11266.

The implementation is our own, because a step takes a few lines, and the authors' package needs
scikit-learn and approximate neighbours, which are of no use for tens of prototypes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def finch(points: Tensor) -> Tensor:
    """Cluster points [n, d] by cosines; returns cluster numbers, int64 [n], in host memory.

    Points are joined with their nearest ones, then the means of clusters, as long as each step
    leaves at least two clusters fewer. The result is the coarsest partition with more than one
    cluster; one cluster, if the first partition has no more.
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
