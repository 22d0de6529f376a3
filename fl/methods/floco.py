"""Floco: clients train a simplex of heads, each in the part of it that suits its samples.

Grinwald, Wiesner, Nakajima. Federated Learning over Connected Modes. NeurIPS 2024.
arXiv:2403.03333.

Family: mixture of clients. Exchanged: body, several heads; down, a point among the heads. Local:
nothing. Key: `rho`.

The head is a mixture of M endpoints, by a random point of the simplex for every batch. After a
share of the rounds all clients train once more, from one model. What this makes of the endpoints is
reduced to M principal components, which are projected on the simplex, and each client draws from
then on near its own point. The shared model is evaluated at the centre of the simplex, a client's
at its point. The first endpoint is the model's initial head, the others are heads of new models.

Points are drawn inside the simplex. In the authors' code (dennis-grinwald/floco, a25b3a1) those
near a client's point may leave it, and the endpoints have a common bias. Its Floco+, which adds
personal models as Ditto does, is left out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fl.api import (
    PAYLOAD,
    SHARED_PARAMS,
    BuildContext,
    Count,
    Forward,
    Method,
    NonNegative,
    Phase,
    Share,
    Tree,
    declare,
    recipe,
    shared,
    single_pass,
    trees,
)
from fl.blocks.exchange import send_all_but
from fl.blocks.linear_layers import head_outputs, head_parameters
from fl.blocks.solution_simplex import client_points, draw_near, mixed_head, other_endpoints

POINTS, HAS_REGIONS = "points", "has regions"
"""Keys in the server's tree: all clients' points, [N, M], and whether they were found."""


@declare("global", "personal", title="Floco")
class Floco:
    """FedAvg of a simplex of heads.

    Attributes:
        endpoints: Number M of endpoints; 1 is FedAvg.
        tau: Share of the rounds after which clients get points (the authors: 250 of 500 rounds).
        rho: Largest distance of a draw from a client's point (the authors: .01 to .5, by data set).
    """

    endpoints: Count = 10
    tau: Share = 0.5
    rho: NonNegative = 0.1

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg with the loss at sum_m alpha_m h_m, and a phase that finds the points."""
        network = context.network
        names = [name for name in network.names["params"] if name in network.head]

        def loss(forward: Forward) -> Tensor:
            payload, key = forward.work[PAYLOAD], forward.batch["key"][0]
            alpha = draw_near(key, payload["point"].double(), payload["has region"], self.rho)
            first = head_parameters(network, forward.params)
            head = mixed_head(first, forward.shared_params, alpha)
            outputs = head_outputs(head, forward.output.features)
            return context.task.loss(outputs, forward.batch)

        start = partial(other_endpoints, context, endpoints=self.endpoints)
        base = recipe(context, terms=(loss,), shared_params=start)
        local = single_pass(base)

        def init(variables: Tree) -> tuple[Tree, Tree]:
            server, client = base.init(variables)
            leaf = trees.leaves(variables["params"])[0]
            centre = leaf.new_full((context.clients, self.endpoints), 1 / self.endpoints)
            return {**server, POINTS: centre, HAS_REGIONS: centre.sum() < 0}, client

        def point_of(server: Tree, client: Tree) -> Tensor:
            return server[POINTS].index_select(0, client["id"].reshape(1))[0]

        def payload(server: Tree, client: Tree) -> Tree:
            return {"point": point_of(server, client), "has region": server[HAS_REGIONS]}

        def begin(server: Tree, client: Tree) -> Tree:
            return {**local.begin(server, client), PAYLOAD: client[PAYLOAD]}

        def send_endpoints(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
            _, upload = local.end(server, client, work)
            head = head_parameters(network, upload["params"])
            return dict(client), {"first": dict(head), "others": upload[SHARED_PARAMS]}

        def find_points(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
            points = client_points(uploads, clients["id"], self.endpoints).to(server[POINTS])
            next_points = server[POINTS].index_copy(0, clients["id"], points)
            has_regions = torch.ones_like(server[HAS_REGIONS])
            return {**server, POINTS: next_points, HAS_REGIONS: has_regions}, dict(clients)

        def at(server: Tree, alpha: Tensor) -> Tree:
            model = shared(server, None)
            params = model["params"]
            head = mixed_head(head_parameters(network, params), server[SHARED_PARAMS], alpha)
            replaced = {name: head[name.rpartition(".")[2]] for name in names}
            return {**model, "params": {**params, **replaced}}

        def centre_model(server: Tree, client: Tree | None) -> Tree:
            return at(server, torch.full_like(server[POINTS][0], 1 / self.endpoints))

        def own_model(server: Tree, client: Tree | None) -> Tree:
            return at(server, point_of(server, client or {}))

        first_round = int(self.tau * context.training.rounds) + 1
        sampling, send = replace(local.sampling, needs_keys=True), send_all_but(POINTS, HAS_REGIONS)
        step = replace(local, begin=begin, sampling=sampling)
        passes = (replace(step, end=send_endpoints),)
        phase = Phase(
            passes,
            find_points,
            lambda round_: round_ == first_round,
            send,
            payload,
            all_clients=True,
        )
        method = replace(base, init=init, passes=(step,), earlier_phases=(phase,))
        views = {"global": centre_model, "personal": own_model}
        return replace(method, send=send, payload=payload, views=views)
