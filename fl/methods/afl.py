"""AFL: the shared model minimises the loss of the worst mixture of the clients.

Mohri, Sivek, Suresh. Agnostic Federated Learning. ICML 2019. arXiv:1902.00146.

Family: aggregation. Exchanged: model, loss. Local: nothing. Key: `eta_lambda`.

The mixture lambda has a weight for each client and begins uniform. In each round the participants'
models are averaged by their weights, and their weights then rise by their losses of the model that
was sent. The paper takes one stochastic gradient step of all clients in a round; here clients train
as in FedAvg, of which one local step is the paper's case.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    Method,
    NonNegative,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    Tree,
    Variables,
    declare,
    recipe,
    shared_model,
    trees,
)
from fl.blocks.exchange import send_all_but
from fl.blocks.mixing import project_to_simplex
from fl.blocks.shared_loss import shared_loss_sweep

Mixture = TypedDict("Mixture", {"lambda": Tensor})
"""Weights lambda of all clients, [clients], which stay on the server."""


class AFLServer(RecipeServer, Mixture):
    """State of the server."""


class AFLUpload(RecipeUpload):
    """Upload of a client.

    Attributes:
        loss: Its loss F_k of the model that was sent, [].
    """

    loss: Tensor


@declare("global", title="AFL", tasks=("classification", "regression"))
class AFL:
    """FedAvg with weights of clients that the server learns.

    Attributes:
        eta_lambda: Learning rate of the weights; 0 is FedAvg over clients that count alike.
    """

    eta_lambda: NonNegative = 0.1

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg in which lambda <- project(lambda + eta_lambda F), algorithm 1."""
        base = recipe(context)

        def init(variables: Variables) -> tuple[AFLServer, RecipeClient]:
            server, client = base.init(variables)
            leaf = trees.leaves(variables["params"])[0]
            weights = leaf.new_full((context.clients,), 1 / context.participants)
            return {**server, "lambda": weights}, client

        def combine(
            server: AFLServer, client: Tree, upload: RecipeUpload, loss: Tensor
        ) -> AFLUpload:
            return {**upload, "loss": loss}

        def aggregate(
            server: AFLServer, clients: RecipeClient, uploads: AFLUpload, n: Tensor
        ) -> tuple[AFLServer, RecipeClient]:
            ids = clients["id"]
            weights = server["lambda"].index_select(0, ids) * (n > 0)
            # If the mixture has none of the participants, they count alike.
            weights = torch.where(weights.sum() > 0, weights, (n > 0).to(weights.dtype))
            models = shared_model(uploads, None)
            next_server, clients = base.aggregate(server, clients, models, weights)
            mixture = server["lambda"].index_add(0, ids, self.eta_lambda * uploads["loss"])
            return {**next_server, "lambda": project_to_simplex(mixture)}, clients

        return replace(
            base,
            init=init,
            passes=(*base.passes, shared_loss_sweep(context, combine)),
            aggregate=aggregate,
            send=send_all_but("lambda"),
            trace=lambda server: {"lambda": server["lambda"]},
        )
