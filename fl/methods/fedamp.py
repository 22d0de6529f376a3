"""FedAMP: every client is held near a mixture of all models in which like models weigh most.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang. Personalized Cross-Silo Federated Learning on Non-IID Data.
AAAI 2021. arXiv:2007.03797.

Family: mixture of clients. Exchanged: model. Local: model. Key: `lam`.

alpha_k and lambda are constants. The paper does not bound the weight of the others; where the
client's own weight in its mixture would be negative, it is 0 here and the weights of the others add
up to 1. `cosine` is HeurFedAMP; pFedGraph's code has it of moves with sigma 10 and own .3. Only
clients of a round are mixed, each for the next round in which it takes part. Running statistics of
batch normalisation are not mixed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypedDict

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    Method,
    NonNegative,
    Pass,
    Positive,
    RecipeClient,
    RecipeServer,
    RecipeWork,
    Share,
    Variables,
    Weights,
    all_weights,
    declare,
    recipe,
    single_pass,
    task_loss,
    trees,
)
from fl.blocks.exchange import train_from_payload
from fl.blocks.mixing import cosines, mix, squared_distances
from fl.blocks.proximal import ProximalTerm


class FedAMPServer(RecipeServer):
    """State of the server, with `of` ``moves``.

    Attributes:
        origin: Parameters before round 1, by name.
    """

    origin: Weights


class FedAMPUpload(TypedDict):
    """Upload of a client.

    Attributes:
        params: Parameters of its own model, by name.
    """

    params: Weights


@declare("personal", tasks="any")
class FedAMP:
    """Personal models that are attracted by similar models.

    Attributes:
        lam: Lambda of the penalty (lambda / 2 alpha) ||w - u||^2.
        alpha: The server's step size alpha_k.
        sigma: Scale of the distance, or factor of the cosine.
        attention: Weights of other models: `gaussian`, alpha A'(||w_i - w_j||^2) with A = 1 -
            exp(-x / sigma), or `cosine`, the softmax of sigma cos(w_i, w_j) over all other clients,
            with sum 1 - own.
        own: Weight of the client's own model with `cosine`.
        of: Vectors that `cosine` compares: `models`, or their `moves` from the initial model.
    """

    lam: NonNegative = 1.0
    alpha: Positive = 1.0
    sigma: Positive = 1.0
    attention: Literal["gaussian", "cosine"] = "gaussian"
    own: Share = 0.5
    of: Literal["models", "moves"] = "models"

    def build(self, context: BuildContext) -> Method:
        """Local training under a proximal term to what the server mixed for the client."""
        terms = (task_loss, ProximalTerm(self.lam / self.alpha))
        base = recipe(context, terms=terms, local=all_weights)
        local: Pass = train_from_payload(single_pass(base))

        def init(variables: Variables) -> tuple[RecipeServer, RecipeClient]:
            server, client = base.init(variables)
            client["payload"] = {"params": variables["params"], "buffers": {}}
            with_origin: FedAMPServer = {**server, "origin": variables["params"]}
            return with_origin if self.of == "moves" else server, client

        def end(
            server: RecipeServer, client: RecipeClient, work: RecipeWork
        ) -> tuple[RecipeClient, FedAMPUpload]:
            client, _ = local.end(server, client, work)
            return client, {"params": client["params"]}

        def aggregate(
            server: FedAMPServer, clients: RecipeClient, uploads: FedAMPUpload, n: Tensor
        ) -> tuple[RecipeServer, RecipeClient]:
            compared = uploads["params"]
            if self.of == "moves":
                compared = trees.apply(torch.sub, compared, server["origin"])
            mixed = mix(self.weights(compared), uploads["params"])
            return server, {**clients, "payload": {"params": mixed, "buffers": {}}}

        return Method(init, (replace(local, end=end),), aggregate, base.views)

    def weights(self, models: Weights) -> Tensor:
        """xi, [K, K], from models or moves: rows sum to 1."""
        if self.attention == "cosine":
            return softmax_of_others(self.sigma * cosines(models), self.own)
        attention_weights = (
            self.alpha / self.sigma * torch.exp(-squared_distances(models) / self.sigma)
        )
        attention_weights = attention_weights - torch.diag(attention_weights.diagonal())
        total = attention_weights.sum(-1)
        attention_weights = attention_weights / total.clamp(min=1)[:, None]
        return attention_weights + torch.diag((1 - total).clamp(min=0))


def softmax_of_others(scores: Tensor, own_weight: float) -> Tensor:
    """Rows that give ``own_weight`` to the client itself, and the rest to the others by softmax."""
    identity = torch.eye(len(scores), dtype=scores.dtype, device=scores.device)
    if len(scores) == 1:
        return identity
    softmax_weights = torch.softmax(scores.masked_fill(identity.bool(), -torch.inf), dim=-1)
    return own_weight * identity + (1 - own_weight) * softmax_weights
