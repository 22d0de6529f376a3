"""pFedLA: each client's model is a mixture of all models by layer, with weights of a hypernetwork.

Ma, Zhang, Guo, Xu. Layer-wised Model Aggregation for Personalized Federated Learning. CVPR 2022.
arXiv:2205.03993.

Family: mixture of clients. Exchanged: model, mixed by layer. Local: running statistics. Key:
`hyper_lr`.

The server has a hypernetwork for each client, whose input is an embedding of the client. Its
outputs, divided by their sum, weigh the models of all clients in each layer. A client trains its
mixture and sends the model, which takes its place among the models. The hypernetwork takes a
gradient step that brings the mixture nearer to what the client made of it. Its shape, the ReLU of
its outputs and the defaults are those of FL-bench (06e658b), whose step leads away; no code of the
authors could be read. A layer is a module with weights, there a tensor. A client without a weight
above 0 in a layer keeps its own layer. The paper's HeurpFedLA, which keeps some layers, is not
here. Running statistics stay with the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    BuildContext,
    Count,
    Method,
    NonNegative,
    RecipeClient,
    RecipeUpload,
    Variables,
    Weights,
    declare,
    recipe,
    rng,
    single_pass,
    trees,
    weights_in,
)
from fl.blocks.exchange import train_from_payload
from fl.blocks.linear_layers import linear_parameters


class Hypernetwork(TypedDict):
    """Parameters of a client's hypernetwork.

    Attributes:
        hidden: Hidden layers by number: ``weight`` and ``bias`` of each.
        heads: ``weight`` [layers, clients, h] and ``bias`` [layers, clients] of the last layer.
        embedding: The client's embedding, [e].
        own: 1 for the client itself, else 0, [clients].
    """

    hidden: Mapping[str, Weights]
    heads: Weights
    embedding: Tensor
    own: Tensor


class PFedLAServer(TypedDict):
    """State of the server.

    Attributes:
        models: Parameters of all clients, stacked: leaves [clients, ...].
        hyper: Their hypernetworks, stacked likewise.
    """

    models: Weights
    hyper: Hypernetwork


@declare("personal", title="pFedLA", tasks="any")
class PFedLA:
    """Mixtures of models by layer, from hypernetworks on the server.

    Attributes:
        hyper_lr: Learning rate of the hypernetworks; 0: weights stay as they begin, about equal.
        embedding: Length of a client's embedding.
        hidden: Width of the three hidden layers.
    """

    hyper_lr: NonNegative = 5e-3
    embedding: Count = 100
    hidden: Count = 100

    def build(self, context: BuildContext) -> Method:
        """Return local training of sum_j alpha_kj^l theta_j^l, and a server that trains alpha."""
        base = recipe(context, local=weights_in(context.network.names["buffers"]))
        local = train_from_payload(single_pass(base))

        def init(variables: Variables) -> tuple[PFedLAServer, RecipeClient]:
            models = trees.repeat(variables["params"], context.clients)
            hyper = self.hypernetworks(context, variables["params"])
            return {"models": models, "hyper": hyper}, base.init(variables)[1]

        def aggregate(
            server: PFedLAServer, clients: RecipeClient, uploads: RecipeUpload, n: Tensor
        ) -> tuple[PFedLAServer, RecipeClient]:
            numbers, trained = clients["id"], uploads["params"]
            hyper = trees.take(server["hyper"], numbers)
            slopes = gradients(hyper, server["models"], trained)
            hyper = trees.apply(lambda w, g: w - self.hyper_lr * g, hyper, slopes)
            models = trees.replace_clients(server["models"], numbers, trained)
            hypers = trees.replace_clients(server["hyper"], numbers, hyper)
            return {"models": models, "hyper": hypers}, clients

        views = {"personal": mixed}
        return Method(init, (local,), aggregate, views, send=lambda server: {}, payload=payload)

    def hypernetworks(self, context: BuildContext, params: Weights) -> Hypernetwork:
        """Return the hypernetworks of all clients, which differ in their embeddings alone."""
        leaf = trees.leaves(params)[0]
        generator = torch.Generator().manual_seed(rng.torch_seed(context.seed, "hypernetwork"))
        clients, layers = context.clients, len(layers_of(params))
        sizes = [self.embedding, *[self.hidden] * 3]
        hidden = {str(i): linear_parameters(generator, leaf, *sizes[i : i + 2]) for i in range(3)}
        weight = torch.rand(layers, clients, self.hidden, generator=generator, dtype=torch.float64)
        heads = {"weight": weight.to(leaf), "bias": leaf.new_zeros(layers, clients)}
        normal = torch.randn(clients, self.embedding, generator=generator, dtype=torch.float64)
        return {
            "hidden": trees.repeat(hidden, clients),
            "heads": trees.repeat(heads, clients),
            "embedding": normal.to(leaf),
            "own": torch.eye(clients).to(leaf),
        }


def payload(server: PFedLAServer, client: RecipeClient) -> Variables:
    """Return a client's mixture of all models."""
    number = client["id"].reshape(1)
    hyper = trees.apply(lambda leaf: leaf.index_select(0, number)[0], server["hyper"])
    return {"params": mixture(hyper, server["models"]), "buffers": {}}


def mixed(server: PFedLAServer, client: RecipeClient) -> Variables:
    """Return a client's mixture with its own buffers, as a view."""
    return {**payload(server, client), "buffers": client["buffers"]}


def layers_of(params: Weights) -> dict[str, int]:
    """Return the number of each module with weights, by name, in order."""
    names = dict.fromkeys(name.rpartition(".")[0] for name in params)
    return {name: number for number, name in enumerate(names)}


def layer_weights(hyper: Hypernetwork) -> Tensor:
    """Return alpha of ONE client, [layers, clients], in which each row has the sum 1."""
    inner = hyper["embedding"]
    for layer in hyper["hidden"].values():
        inner = F.relu(F.linear(inner, layer["weight"], layer["bias"]))
    weights = F.relu(hyper["heads"]["weight"] @ inner + hyper["heads"]["bias"])
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / torch.where(total > 0, total, 1), hyper["own"].detach())


def mixture(hyper: Hypernetwork, models: Weights) -> Weights:
    """Return the model of ONE client, from the models of all, leaves [clients, ...]."""
    alpha, numbers = layer_weights(hyper), layers_of(models)
    return {
        name: torch.tensordot(alpha[numbers[name.rpartition(".")[0]]], leaf, dims=1)
        for name, leaf in models.items()
    }


def gradients(hyper: Hypernetwork, models: Weights, trained: Weights) -> Hypernetwork:
    """Return the gradients of |mixture - trained|^2 / 2 by the hypernetworks of some clients."""
    leaves = trees.apply(lambda leaf: leaf.detach().requires_grad_(), hyper)
    with torch.enable_grad():
        mixed = trees.vmap(mixture, (0, None))(leaves, models)
        distance = trees.squared_distance(mixed, trained) / 2
        slopes = torch.autograd.grad(distance, trees.leaves(leaves), materialize_grads=True)
    return trees.unflatten(hyper, slopes)
