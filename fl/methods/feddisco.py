"""FedDisco: clients whose classes are unevenly distributed weigh less in the server's mean.

Ye, Xu, Wang, Xu, Chen, Wang. FedDisco: Federated Learning with Discrepancy-Aware Collaboration.
ICML 2023. arXiv:2305.19229.

Family: aggregation. Exchanged: model, a distance of class shares. Local: nothing. Key: `a`.

Each client sends the distance between its class shares and equal shares, which tells the server
something about its data. As in the authors' code (MediaBrain-SJTU/FedDisco, f3ea299b), the distance
`kl` is divided by its sum over the round's clients. That code fails in a round without a positive
weight; here such a round is weighted as in FedAvg.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    Method,
    NonNegative,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    declare,
    recipe,
    shared_model,
    single_pass,
    trees,
)


class FedDiscoUpload(RecipeUpload):
    """Upload of a client.

    Attributes:
        distance: Distance d_k of its class shares from equal shares, [].
    """

    distance: Tensor


@declare("global", title="FedDisco")
class FedDisco:
    """FedAvg with weights by samples and by class shares.

    Attributes:
        a: Weight of the distance, on the scale of a client's share of the samples, about one over
            the number of participants.
        b: Number that is added to every weight, on the same scale.
        distance: Distance d of the class shares from equal shares: the Kullback-Leibler divergence
            `kl`, or the Euclidean `l2`.
    """

    a: NonNegative = 0.5
    b: NonNegative = 0.1
    distance: Literal["kl", "l2"] = "kl"

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg with weights max(0, p_k - a d_k + b), equation 9."""
        base = recipe(context)
        local = single_pass(base)

        def end(
            server: RecipeServer, client: RecipeClient, work: RecipeWork
        ) -> tuple[RecipeClient, FedDiscoUpload]:
            client, upload = local.end(server, client, work)
            dtype = trees.leaves(upload["params"])[0].dtype
            return client, {**upload, "distance": self.from_equal(client["counts"].to(dtype))}

        def aggregate(
            server: RecipeServer, clients: RecipeClient, uploads: FedDiscoUpload, n: Tensor
        ) -> tuple[RecipeServer, RecipeClient]:
            weights = self.weights(uploads["distance"], n)
            return base.aggregate(server, clients, shared_model(uploads, None), weights)

        return replace(base, passes=(replace(local, end=end),), aggregate=aggregate)

    def from_equal(self, counts: Tensor) -> Tensor:
        """Distance of a client's class shares [C] from equal shares; 0 without a sample."""
        shares = counts / counts.sum().clamp(min=1)
        classes = len(counts)
        if self.distance == "kl":
            return torch.xlogy(shares, shares * classes).sum()
        return (shares - 1 / classes).norm() * (counts.sum() > 0)

    def weights(self, distances: Tensor, n: Tensor) -> Tensor:
        """Weights [K] of the round's clients from their distances [K] and samples [K]."""
        n = n.to(distances.dtype)
        if self.distance == "kl":
            distances = distances / distances.sum().clamp(min=torch.finfo(distances.dtype).tiny)
        weights = (n / n.sum() - self.a * distances + self.b).clamp(min=0) * (n > 0)
        return torch.where(weights.sum() > 0, weights, n)
