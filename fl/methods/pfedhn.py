"""pFedHN: a hypernetwork on the server makes every client's model from an embedding.

Shamsian, Navon, Fetaya, Chechik. Personalized Federated Learning using Hypernetworks. ICML 2021.
arXiv:2103.04628.

Family: mixture of clients. Exchanged: model, made from an embedding. Local: running statistics.
Key: `hyper_lr`.

Clients train the model that they are given and send how it moved. The hypernetwork and the
embeddings take a step along the vector-Jacobian product of that, the mean over the round's clients
(in the released code one client a step). The hypernetwork is that of the released code, with
PyTorch's initial weights: linear layers with ReLU between them and none before the heads. Clients
of that code also clip gradients at norm 50; these do not. Buffers of the model stay with the
client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    BuildContext,
    Count,
    Method,
    NonNegative,
    Optimizer,
    Pass,
    Positive,
    Recipe,
    RecipeClient,
    RecipeWork,
    Share,
    Tree,
    Variables,
    Weights,
    declare,
    recipe,
    rng,
    sgd,
    single_pass,
    trees,
    weights_in,
)
from fl.blocks.exchange import train_from_payload
from fl.blocks.linear_layers import linear_parameters
from fl.blocks.trained_view import with_trained_view


class Hypernetwork(TypedDict):
    """Parameters of the hypernetwork.

    Attributes:
        clients: Embeddings of all clients, [clients, e].
        hidden: Hidden layers by number: ``weight`` and ``bias`` of each.
        heads: A linear layer for each parameter of the network, by its name, likewise.
    """

    clients: Tensor
    hidden: Mapping[str, Weights]
    heads: Mapping[str, Weights]


class PFedHNServer(TypedDict):
    """State of the server.

    Attributes:
        hyper: The hypernetwork.
        optimizer: State of its optimizer.
        like: Zeros of the names and shapes of the network's parameters.
    """

    hyper: Hypernetwork
    optimizer: Tree
    like: Weights


class PFedHNUpload(TypedDict):
    """Upload of a client.

    Attributes:
        moved: What its training took off its generated weights, by name.
    """

    moved: Weights


@declare("personal", title="pFedHN", tasks="any")
class PFedHN:
    """A hypernetwork on the server that generates personal models.

    Attributes:
        hyper_lr: Learning rate of the hypernetwork.
        hyper_momentum: Momentum of the hypernetwork.
        hyper_weight_decay: Weight decay of the hypernetwork.
        hidden: Width of its hidden layers.
        layers: Number of its hidden layers.
        embedding: Length of a client's embedding; null: 1 + clients / 4 as in the released code.
        clip: Largest norm of its gradient.
        scored: Evaluated model: the `generated` model of a client, or the model that it `trained`
            from it (pFedGraph's code).
    """

    hyper_lr: Positive = 0.01
    hyper_momentum: Share = 0.9
    hyper_weight_decay: NonNegative = 1e-3
    hidden: Count = 100
    layers: Count = 3
    embedding: Count | None = None
    clip: Positive = 50.0
    scored: Literal["generated", "trained"] = "generated"

    def build(self, context: BuildContext) -> Method:
        """Local training of generated weights; ``aggregate`` trains what generates them."""
        base = recipe(context, local=weights_in(context.network.names["buffers"]))
        optimizer = sgd(self.hyper_momentum, self.hyper_weight_decay)
        local: Pass = train_from_payload(single_pass(base))
        steps = PFedHNSteps(self, base, local, optimizer, context)
        method = Method(
            steps.init,
            (replace(local, end=steps.end),),
            steps.aggregate,
            {"personal": model_of},
            send=lambda server: {},
            payload=payload,
        )
        return with_trained_view(method) if self.scored == "trained" else method

    def gradient(self, server: PFedHNServer, ids: Tensor, changes: Weights) -> Hypernetwork:
        """The mean over clients of (d theta / d hyper)^T moved, no longer than ``clip``."""
        hyper = trees.apply(lambda leaf: leaf.detach().requires_grad_(), server["hyper"])
        with torch.enable_grad():
            weights = generate_weights(hyper, hyper["clients"][ids], server["like"])
            pairs = zip(trees.leaves(weights), trees.leaves(changes), strict=True)
            total = torch.stack([(theta * d.detach()).sum() for theta, d in pairs]).sum()
            gradients = torch.autograd.grad(total / len(ids), trees.leaves(hyper))
        size = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
        scale = (self.clip / size.clamp(min=1e-12)).clamp(max=1.0)
        return trees.unflatten(hyper, [g * scale for g in gradients])

    def hypernetwork(self, context: BuildContext, params: Weights) -> Hypernetwork:
        """Embeddings of all clients, hidden layers, and a linear head for each of the weights."""
        template = trees.leaves(params)[0]
        generator = torch.Generator().manual_seed(rng.torch_seed(context.seed, "hypernetwork"))

        width = self.embedding or 1 + context.clients // 4
        normal = torch.randn(context.clients, width, generator=generator, dtype=torch.float64)
        sizes = [width, *[self.hidden] * (self.layers + 1)]
        hidden = {
            str(i): linear_parameters(generator, template, *sizes[i : i + 2])
            for i in range(self.layers + 1)
        }
        heads = {
            name: linear_parameters(generator, template, self.hidden, tensor.numel())
            for name, tensor in params.items()
        }
        return {"clients": normal.to(template), "hidden": hidden, "heads": heads}


@dataclass(frozen=True, eq=False)
class PFedHNSteps:
    """Functions of the pass of pFedHN, and what the server does.

    Attributes:
        options: The keys of the method.
        base: Local training.
        local: Its pass, which begins at generated weights.
        optimizer: The optimizer of the hypernetwork.
        context: The context in which the method is built.
    """

    options: PFedHN
    base: Recipe
    local: Pass
    optimizer: Optimizer
    context: BuildContext

    def init(self, variables: Variables) -> tuple[PFedHNServer, RecipeClient]:
        """Return the states: a first hypernetwork."""
        weights = self.options.hypernetwork(self.context, variables["params"])
        shapes = trees.apply(torch.zeros_like, variables["params"])
        server: PFedHNServer = {
            "hyper": weights,
            "optimizer": self.optimizer.init(weights),
            "like": shapes,
        }
        return server, self.base.init(variables)[1]

    def end(
        self, server: PFedHNServer, client: RecipeClient, work: RecipeWork
    ) -> tuple[RecipeClient, PFedHNUpload]:
        """Upload how far training moved the weights."""
        generated = client["payload"]["params"]
        client, trained = self.local.end(server, client, work)
        changes = trees.apply(torch.sub, generated, trained["params"])
        return client, {"moved": changes}

    def aggregate(
        self, server: PFedHNServer, clients: RecipeClient, uploads: PFedHNUpload, n: Tensor
    ) -> tuple[PFedHNServer, RecipeClient]:
        """Take a step of the hypernetwork."""
        grads = self.options.gradient(server, clients["id"], uploads["moved"])
        with torch.no_grad():
            hyper, state = self.optimizer.step(
                server["hyper"], grads, server["optimizer"], self.options.hyper_lr
            )
        return {**server, "hyper": hyper, "optimizer": state}, clients


def payload(server: PFedHNServer, client: RecipeClient) -> Variables:
    """Return a client's generated weights."""
    row = server["hyper"]["clients"].index_select(0, client["id"].reshape(1))
    weights = generate_weights(server["hyper"], row, server["like"])
    return {"params": {name: leaf[0] for name, leaf in weights.items()}, "buffers": {}}


def model_of(server: PFedHNServer, client: RecipeClient) -> Variables:
    """Return a client's generated weights with its own buffers, as a view."""
    return {**payload(server, client), "buffers": client["buffers"]}


def generate_weights(hyper: Hypernetwork, rows: Tensor, template: Weights) -> Weights:
    """The weights for embeddings [K, e], with shape [K, ...] each."""
    inner = rows
    for number, layer in enumerate(hyper["hidden"].values()):
        inner = F.linear(F.relu(inner) if number else inner, layer["weight"], layer["bias"])
    return {
        name: F.linear(inner, head["weight"], head["bias"]).reshape(-1, *template[name].shape)
        for name, head in hyper["heads"].items()
    }
