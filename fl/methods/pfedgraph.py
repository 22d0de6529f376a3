"""pFedGraph: every client gets a mixture of all models, by a collaboration graph that is inferred.

Ye, Ni, Wu, Chen, Wang. Personalized Federated Learning with Inferred Collaboration Graphs. ICML
2023. PMLR 202.

As the released code has it, similarities are cosines of what each model has moved from the common
initialisation, over all parameters, and one above 0.9 counts as 1. A client is evaluated with the
model that it trained, before it is mixed.

The client's regulariser is by default that of its mixture, from round 1 on, when that is the
initial model: it holds the client near to what it goes on from. The released code sums over all
models, has no regulariser in round 1, when there are none, and has its sign the other way round, so
that it drives models apart where the paper has them attract each other.

The collaboration graph of every evaluated round is kept as the trace ``cooperation`` where there
are at most 200 clients: row i has the weights of client i's mixture, zeros if it took no part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fl import trees
from fl.fields import NonNegative, Positive
from fl.method import GIVEN, KINDS, Method, Setting, only
from fl.parts.alignment import alignment, inclination
from fl.parts.losses import task_loss
from fl.parts.mixing import cosines, directions, mix, pfedgraph_weights
from fl.parts.sending import all_but
from fl.recipe import everything, recipe, select
from fl.schema import PERSONAL
from fl.task import ANY
from fl.trees import Tree

MOST = 200
"""Clients of which the graph is kept: its size grows with their square."""


@dataclass(frozen=True)
class PFedGraph:
    """lam: of the server's graph; larger stays nearer to FedAvg.

    mu: weight of the client's regulariser. regulariser: what the client minimises, with W the graph
    and theta_j the models of the last round; `mixture`: f(w) - mu cos(w, sum_j W_ij theta_j), which
    is what it received; `models`: f(w) - mu sum_j W_ij cos(w, theta_j), and f(w) until it has been
    in a graph; `released`: the same with + mu, as the released code has it.
    """

    lam: Positive = 0.8
    mu: NonNegative = 0.01
    regulariser: Literal["mixture", "models", "released"] = "mixture"

    title: ClassVar = "pFedGraph"
    stages: ClassVar = (PERSONAL,)
    tasks: ClassVar = ANY
    sends_own: ClassVar = True

    def build(self, setting: Setting) -> Method:
        """Local whose models are mixed after every round."""
        mixture = self.regulariser == "mixture"
        mu = -self.mu if self.regulariser == "released" else self.mu
        traced = setting.clients <= MOST
        held = alignment(mu, "received") if mixture else inclination(mu, "received")
        terms, own = (task_loss, held), all_but(*KINDS)
        base = recipe(setting, terms=terms, local=everything)
        local = only(base)

        def init(variables: Tree) -> tuple[dict[str, Any], dict[str, Any]]:
            server, client = base.init(variables)
            nowhere = trees.apply(torch.zeros_like, variables["params"])
            given = {**select(client, everything), **({} if mixture else {"toward": nowhere})}
            origin = {"origin": variables["params"]}
            if traced:
                like = trees.leaves(variables["params"])[0]
                origin["cooperation"] = torch.zeros((setting.clients,) * 2, device=like.device)
            return {**server, **origin}, {**own(client), GIVEN: given, "trained": variables}

        def begin(server: Tree, client: Tree) -> dict[str, Any]:
            given = client[GIVEN]
            received = given["params" if mixture else "toward"]
            return {**local.begin(server, {**client, **given}), "received": received}

        def end(server: Tree, client: Tree, work: Tree) -> tuple[dict[str, Any], dict[str, Any]]:
            kept, _ = local.end(server, client, work)
            trained = select(kept, everything)
            return {**own(kept), "trained": trained}, trained

        def aggregate(
            server: Tree, clients: Tree, uploads: Tree, n: Tensor
        ) -> tuple[dict[str, Any], dict[str, Any]]:
            moved = trees.apply(torch.sub, uploads["params"], server["origin"])
            similarity = cosines(moved)
            similarity = torch.where(similarity > 0.9, 1.0, similarity)
            weights = pfedgraph_weights(n / n.sum(), similarity, self.lam)
            mixed = mix(weights, uploads)
            if not mixture:
                mixed["toward"] = mix(weights, directions(uploads["params"]))
            kept = dict(server)
            if traced:
                ids, graph = clients["id"], torch.zeros_like(server["cooperation"])
                graph[ids[:, None], ids] = weights.to(graph)
                kept["cooperation"] = graph
            return kept, {**clients, GIVEN: mixed}

        views = {PERSONAL: lambda server, client: dict(client["trained"])}
        return Method(
            *(init, (replace(local, begin=begin, end=end),), aggregate, views),
            send=all_but("origin", "cooperation"),
            trace=cooperation if traced else None,
        )


def cooperation(server: Tree) -> dict[str, Tensor]:
    """The collaboration graph, float32 [clients, clients]."""
    return {"cooperation": server["cooperation"]}
