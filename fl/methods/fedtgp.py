"""FedTGP: the server learns prototypes that stay apart, from those that clients send.

Zhang, Liu, Hua, Cao. FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive
Learning for Data and Model Heterogeneity in Federated Learning. AAAI 2024. arXiv:2401.03230.

Family: class means. Exchanged: up mean features by class, down prototypes. Local: model. Key:
`margin`.

A prototype is what a small network makes of the trained vector of its class. Each mean that a
client sent is to be nearer to the prototype of its class than to any other, by a margin: the
largest distance of a class's mean to its nearest other, at most ``margin``. The server takes all
means in each step; the authors' code (TsingZ0/HtFLlib, e959261) takes epochs of small batches,
which are more steps. There, the gradient is NaN where a mean meets a prototype; here the square
root has a floor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    BuildContext,
    Count,
    Method,
    NonNegative,
    Positive,
    Predictor,
    Recipe,
    RecipeClient,
    RecipeServer,
    ServerWork,
    Tree,
    Variables,
    Weights,
    all_weights,
    classification_loss,
    cross_entropy,
    declare,
    personal_model,
    recipe,
    rng,
    trees,
)
from fl.blocks.anchor_exchange import ANCHOR_ROUND, anchors_after_training
from fl.blocks.anchors import Anchors, towards_anchors, uniform_anchors, zero_anchors
from fl.blocks.exchange import send_all_but
from fl.blocks.linear_layers import feature_width, linear_parameters
from fl.blocks.server_learning import descend, empty_class_means, labels_of_means

SMALLEST_SQUARE = 1e-12
"""Floor of squared distances."""


class Generator(TypedDict):
    """Parameters of the server's generator of prototypes.

    Attributes:
        classes: A vector for each class, [C, d].
        hidden: The layer behind it: ``weight`` [d, d] and ``bias`` [d].
        out: The last layer, as ``hidden``.
    """

    classes: Tensor
    hidden: Weights
    out: Weights


class FedTGPServer(RecipeServer):
    """State of the server.

    Attributes:
        anchors: Prototypes of all classes, [C, d]; zeros before round 1.
        prototypes: The generator; it stays on the server.
    """

    anchors: Tensor
    prototypes: Generator


class FedTGPUpload(TypedDict):
    """Upload of a client.

    Attributes:
        anchors: Its mean feature and number of samples by class.
    """

    anchors: Anchors


class FedTGPModel(Variables):
    """Model of a client that is scored.

    Attributes:
        anchors: As in `FedTGPServer`.
    """

    anchors: Tensor


@declare("personal", title="FedTGP")
class FedTGP:
    """Clients exchange prototypes that the server has learned.

    Attributes:
        lam: Weight of the distance between features and prototypes.
        server_steps: Steps of the server in a round.
        server_lr: Learning rate of the server.
        margin: Largest margin.
    """

    lam: NonNegative = 1.0
    server_steps: Count = 100
    server_lr: Positive = 0.01
    margin: Positive = 100.0

    def build(self, context: BuildContext) -> Method:
        """Return Local with one more term, and a server that learns the prototypes."""
        base = recipe(context, terms=(cross_entropy, towards_anchors(self.lam)), local=all_weights)
        exchange = anchors_after_training(base, context, lambda previous, uploads: previous)
        steps = FedTGPSteps(self, exchange, context)
        return replace(
            exchange,
            init=steps.init,
            aggregate=steps.aggregate,
            send=send_all_but("prototypes", ANCHOR_ROUND),
            views={"personal": Predictor(with_prototypes, steps.nearest, is_per_sample=True)},
            server_work=(ServerWork(lambda round_: self.server_steps, steps.one_step),),
        )

    def generator(self, context: BuildContext, variables: Variables) -> Generator:
        """First vectors of classes, [C, d], and the two layers behind them."""
        leaf = trees.leaves(variables["params"])[0]
        width = feature_width(context.network, variables["params"])
        draws = torch.Generator().manual_seed(rng.torch_seed(context.seed, "prototypes"))
        normal = torch.randn(context.classes, width, generator=draws, dtype=torch.float64)
        return {
            "classes": normal.to(leaf),
            "hidden": linear_parameters(draws, leaf, width, width),
            "out": linear_parameters(draws, leaf, width, width),
        }

    def margin_of(self, uploads: Anchors) -> Tensor:
        """Largest distance of a class's mean prototype to its nearest other, at most ``margin``."""
        counts = uploads["counts"]
        class_means, exists = uniform_anchors(uploads["means"], counts), counts.sum(0) > 0
        distances = distances_between(class_means, class_means)
        is_same = torch.eye(len(class_means), dtype=torch.bool, device=class_means.device)
        is_pair = exists[:, None] & exists[None] & ~is_same
        nearest = torch.where(is_pair, distances, float("inf")).amin(1)
        return torch.where(nearest.isfinite(), nearest, 0).amax().clamp(max=self.margin)


@dataclass(frozen=True, eq=False)
class FedTGPSteps:
    """What the server of FedTGP does, and its view.

    Attributes:
        options: The keys of the method.
        exchange: Local with one more term, whose clients upload mean features.
        context: The context in which the method is built.
    """

    options: FedTGP
    exchange: Recipe
    context: BuildContext

    def init(self, variables: Variables) -> tuple[FedTGPServer, RecipeClient]:
        """Return Local's states and a first generator of prototypes."""
        server, client = self.exchange.init(variables)
        return {
            **server,
            "anchors": zero_anchors(self.context.network, variables, self.context.classes),
            "prototypes": self.options.generator(self.context, variables),
        }, client

    def learned(self, params: Generator, uploads: Anchors, steps: int) -> Generator:
        """Return the generator after some steps on the prototypes of clients."""
        class_means, (labels, weight) = uploads["means"].flatten(0, 1), labels_of_means(uploads)
        margin = self.options.margin_of(uploads)

        def loss(params: Generator) -> Tensor:
            distances = distances_between(class_means, prototypes(params))
            is_own_class = F.one_hot(labels, self.context.classes).to(distances.dtype)
            return classification_loss(
                -(distances + margin * is_own_class), {"y": labels, "weight": weight}
            )

        return descend(params, loss, steps, self.options.server_lr)

    def aggregate(
        self, server: FedTGPServer, clients: RecipeClient, uploads: FedTGPUpload, n: Tensor
    ) -> tuple[FedTGPServer, RecipeClient]:
        """Train the generator, and make the prototypes of all classes."""
        next_server, clients = self.exchange.aggregate(server, clients, uploads, n)
        params = self.learned(server["prototypes"], uploads["anchors"], self.options.server_steps)
        return {
            **next_server,
            "prototypes": params,
            "anchors": prototypes(params),
        }, clients

    def one_step(self, server: FedTGPServer) -> Generator:
        """Take a step of the generator, for the costs of a run."""
        return self.learned(
            server["prototypes"], empty_class_means(self.context, server["anchors"]), 1
        )

    def nearest(self, variables: FedTGPModel, memory: Tree, x: Tensor) -> Tensor:
        """Return minus the distances of features to the prototypes."""
        features = self.context.network.eval(variables["params"], variables["buffers"], x).features
        return -distances_between(features.flatten(1), variables["anchors"])


def with_prototypes(server: FedTGPServer, client: RecipeClient) -> FedTGPModel:
    """Return a client's model and the prototypes, as a view."""
    return {**personal_model(server, client), "anchors": server["anchors"]}


def prototypes(params: Generator) -> Tensor:
    """Return the prototypes of all classes, [C, d]."""
    first, second = params["hidden"], params["out"]
    hidden = F.relu(F.linear(params["classes"], first["weight"], first["bias"]))
    return F.linear(hidden, second["weight"], second["bias"])


def distances_between(first: Tensor, second: Tensor) -> Tensor:
    """Return Euclidean distances of rows [m, d] and [C, d], [m, C]; no gradient flows at 0."""
    # The difference of squares leaves enough digits in double precision.
    a, b = first.double(), second.double()
    squares = a.square().sum(-1)[:, None] + b.square().sum(-1) - 2 * a @ b.T
    return squares.clamp(min=SMALLEST_SQUARE).sqrt().to(first.dtype)
