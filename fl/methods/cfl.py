"""CFL: clients are split into clusters where their updates point apart; each cluster has a model.

Sattler, Müller, Samek. Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
Optimization under Privacy Constraints. IEEE TNNLS 2021. arXiv:1910.01991.

Family: mixture of clients. Exchanged: model of a cluster. Local: nothing. Key: `eps1`.

A cluster is split in two, by the cosines of its clients' updates, when its mean update is small
(stationary) although some client's update is large. Both bounds are relative to the largest norm of
an update in the first round, as absolute ones depend on the model. Means are weighted by samples.
Only the clients of a round are told apart; the others of a cluster stay with its first half. There
are at most ``most`` clusters.

As in the released code, it is not bounded how alike the halves may be (the paper's gamma_max).
Other than there: in means, clients are not counted alike; clusters of two can be split; and the
halves are the paper's, between which the largest similarity is as small as possible, not those of
complete linkage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    Count,
    Index,
    Method,
    NonNegative,
    Recipe,
    RecipeClient,
    RecipeUpload,
    Variables,
    declare,
    recipe,
    shared_model,
    single_pass,
    trees,
)
from fl.blocks.exchange import train_from_payload
from fl.blocks.mixing import client_rows, cosines
from fl.blocks.trained_view import with_trained_view


class CFLServer(TypedDict):
    """State of the server.

    Attributes:
        models: Variables of the clusters' models, stacked: leaves [most, ...].
        cluster: Number of each client's cluster, int64 [clients].
        scale: Largest norm of an update in round 1, or 1, float64 [].
        round: Number of finished rounds, int64 [].
    """

    models: Variables
    cluster: Tensor
    scale: Tensor
    round: Tensor


@declare("personal", tasks="any")
class CFL:
    """Clustering by the similarity of updates.

    Attributes:
        eps1: A cluster is split only if the norm of its mean update is below this bound.
        eps2: A cluster is split only if the norm of a client's update is above this bound.
        bounds: Meaning of eps1 and eps2: `relative` to the largest norms of round 1, or `absolute`
            (the released code: .4 and 1.6).
        after: Number of rounds before the first split (the released code: 20; pFedGraph's code: 0,
            with eps 2 and 2.5).
        most: Largest number of clusters.
        scored: Evaluated model: the model of the client's `cluster`, or the model that the client
            `trained` from it (pFedGraph's code).
    """

    eps1: NonNegative = 0.1
    eps2: NonNegative = 0.4
    bounds: Literal["relative", "absolute"] = "relative"
    after: Index = 20
    most: Count = 8
    scored: Literal["cluster", "trained"] = "cluster"

    def build(self, context: BuildContext) -> Method:
        """FedAvg inside each cluster; the server keeps the models and who is in which cluster."""
        base = recipe(context)
        steps = CFLSteps(self, base, context)
        method = Method(
            steps.init,
            (train_from_payload(single_pass(base)),),
            steps.aggregate,
            {"personal": payload},
            send=lambda server: {},
            payload=payload,
            trace=clusters,
        )
        return with_trained_view(method) if self.scored == "trained" else method

    def at_odds(self, update: Tensor, n: Tensor, scale: Tensor) -> bool:
        """Whether the mean update of a cluster is small although some client's is large."""
        mean = (update * (n / n.sum())[:, None].to(update.dtype)).sum(0).norm()
        is_uniform = update.norm(dim=1).max() <= self.eps2 * scale
        return not ((mean >= self.eps1 * scale) | is_uniform)


@dataclass(frozen=True, eq=False)
class CFLSteps:
    """Functions of the server of CFL.

    Attributes:
        options: The keys of the method.
        base: FedAvg.
        context: The context in which the method is built.
    """

    options: CFL
    base: Recipe
    context: BuildContext

    def init(self, variables: Variables) -> tuple[CFLServer, RecipeClient]:
        """Return the states before round 1: one cluster."""
        template = trees.leaves(variables["params"])[0]
        server: CFLServer = {
            "models": trees.repeat(shared_model(variables, None), self.options.most),
            "cluster": torch.zeros(self.context.clients, dtype=torch.int64, device=template.device),
            "scale": torch.zeros((), dtype=torch.float64, device=template.device),
            "round": torch.zeros((), dtype=torch.int64, device=template.device),
        }
        return server, self.base.init(variables)[1]

    def aggregate(
        self, server: CFLServer, clients: RecipeClient, uploads: RecipeUpload, n: Tensor
    ) -> tuple[CFLServer, RecipeClient]:
        """Average inside each cluster, after splitting those at odds (algorithm 1)."""
        ids = clients["id"]
        previous_models = trees.take(server["models"]["params"], server["cluster"][ids])
        update = client_rows(trees.apply(torch.sub, uploads["params"], previous_models))
        is_relative = self.options.bounds == "relative"
        largest = update.norm(dim=1).max() if is_relative else torch.ones_like(server["scale"])
        scale = torch.where(server["round"] > 0, server["scale"], largest)
        cluster, models = server["cluster"].clone(), server["models"]
        can_split = int(server["round"]) >= self.options.after
        for number in server["cluster"][ids].unique().tolist():
            rows = (server["cluster"][ids] == number).nonzero()[:, 0]
            halves, new_cluster = {number: rows}, int(cluster.max()) + 1
            has_room = len(rows) > 1 and new_cluster < self.options.most
            if can_split and has_room and self.options.at_odds(update[rows], n[rows], scale):
                second = bipartition(cosines({"update": update[rows]})).to(rows.device) == 1
                halves = {number: rows[~second], new_cluster: rows[second]}
                cluster[ids[halves[new_cluster]]] = new_cluster
            for cluster_number, members in halves.items():
                mean = trees.mean(trees.take(uploads, members), n[members])
                index = torch.tensor([cluster_number], device=ids.device)
                models = trees.replace_clients(models, index, trees.stack([mean]))
        return {
            "models": models,
            "cluster": cluster,
            "scale": scale,
            "round": server["round"] + 1,
        }, clients


def payload(server: CFLServer, client: RecipeClient) -> Variables:
    """Return the model of a client's cluster."""
    return trees.take(server["models"], trees.rows(server["cluster"], client["id"]))


def clusters(server: CFLServer) -> dict[str, Tensor]:
    """The cluster of every client, by id."""
    return {"cluster": server["cluster"]}


def bipartition(similarity: Tensor) -> Tensor:
    """Two groups between which the largest similarity is as small as possible: [K] of 0 and 1.

    Clients are joined in the order of their similarity, the largest first, until two groups are
    left (Sattler et al. 2021, algorithm 1). The result is exact: it is Kruskal's spanning tree
    without its weakest edge. The first client is in group 0. In host memory.

    Args:
        similarity: [K, K], symmetric; K at least 2.
    """
    similarity = similarity.cpu()
    count = len(similarity)
    group = list(range(count))
    first_index, second_index = torch.triu_indices(count, count, offset=1)
    order = torch.argsort(similarity[first_index, second_index], descending=True, stable=True)
    joins = 0
    for edge in order.tolist():
        if joins == count - 2:
            break
        target_group, source_group = group[int(first_index[edge])], group[int(second_index[edge])]
        if target_group != source_group:
            group = [target_group if member == source_group else member for member in group]
            joins += 1
    return torch.tensor([int(member != group[0]) for member in group])
