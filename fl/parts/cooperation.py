"""Clients whose models are mixed after every round, by weights that follow from what they send.

What pFedGraph and FedSaC have in common. A client trains the mixture that was made for it, under a
regulariser that holds it near. It is evaluated with the model that it trained, before that is
mixed. Matrices between clients are kept as traces where there are at most `MOST` clients; a client
that takes no part in a round has zeros in them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from fl import trees
from fl.method import GIVEN, KINDS, Method, Pass, Setting, Sweep, only
from fl.parts.alignment import alignment, inclination
from fl.parts.losses import task_loss
from fl.parts.mixing import directions, mix
from fl.parts.sending import all_but
from fl.recipe import everything, recipe, select
from fl.schema import PERSONAL
from fl.trees import Tree

MOST = 200
"""The most clients of which matrices are kept: their size grows with the square."""

Regulariser = Literal["mixture", "models", "released"]
"""What the client minimises, with W the network of the last round and theta_j its models:
`mixture`, f(w) - mu cos(w, sum_j W_ij theta_j), which is what it received, in round 1 the initial
model; `models`, f(w) - mu sum_j W_ij cos(w, theta_j), and f(w) until it has been in a network;
`released`, the same with + mu, which drives models apart.
"""

Weigh = Callable[[Tree, Tree, Tree, Tensor], dict[str, Tensor]]
"""(server, clients, uploads, n) -> matrices between the round's participants, [K, K] each; that of
`WEIGHTS` has in row i the weights of client i's mixture. ``server["round"]``: rounds before this;
``server["origin"]``: the parameters that all began with.
"""

WEIGHTS = "cooperation"


def cooperating(
    setting: Setting,
    weigh: Weigh,
    *,
    mu: float,
    regulariser: Regulariser,
    matrices: tuple[str, ...] = (WEIGHTS,),
    sweep: Sweep | None = None,
    admit: Callable[[Tensor, Tensor], None] | None = None,
) -> Method:
    """Local training, after every round of which the clients' models are mixed.

    Args:
        weigh: Makes the matrices between the round's participants.
        mu: The weight of the regulariser.
        matrices: The names of the matrices that ``weigh`` makes.
        sweep: What clients look at after training. It finds the model in what was sent and sends it
            on; what it sends beside the model is for ``weigh`` alone.
        admit: See `fl.method.Method`.
    """
    mixture = regulariser == "mixture"
    mu = -mu if regulariser == "released" else mu
    traced = matrices if setting.clients <= MOST else ()
    held = alignment(mu, "received") if mixture else inclination(mu, "received")
    own = all_but(*KINDS)
    base = recipe(setting, terms=(task_loss, held), local=everything)
    local = only(base)

    def init(variables: Tree) -> tuple[dict[str, Any], dict[str, Any]]:
        server, client = base.init(variables)
        nowhere = trees.apply(torch.zeros_like, variables["params"])
        given = {**select(client, everything), **({} if mixture else {"toward": nowhere})}
        like = trees.leaves(variables["params"])[0]
        square = torch.zeros((setting.clients,) * 2, device=like.device)
        kept = {
            "origin": variables["params"],
            "round": torch.zeros((), dtype=torch.int64, device=like.device),
            **dict.fromkeys(traced, square),
        }
        return {**server, **kept}, {**own(client), GIVEN: given, "trained": variables}

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
        found = weigh(server, clients, uploads, n)
        models = select(uploads, everything)
        mixed = mix(found[WEIGHTS], models)
        if not mixture:
            mixed["toward"] = mix(found[WEIGHTS], directions(models["params"]))
        kept = {name: _spread(found[name], clients["id"], server[name]) for name in traced}
        return {**server, **kept, "round": server["round"] + 1}, {**clients, GIVEN: mixed}

    views = {PERSONAL: lambda server, client: dict(client["trained"])}
    passes: tuple[Pass | Sweep, ...] = (replace(local, begin=begin, end=end),)
    return Method(
        *(init, (*passes, sweep) if sweep else passes, aggregate, views),
        send=all_but("origin", "round", *matrices),
        trace=(lambda server: {name: server[name] for name in traced}) if traced else None,
        admit=admit,
    )


def _spread(matrix: Tensor, ids: Tensor, like: Tensor) -> Tensor:
    """A matrix between participants, as a matrix between all clients."""
    whole = torch.zeros_like(like)
    whole[ids[:, None], ids] = matrix.to(whole)
    return whole
