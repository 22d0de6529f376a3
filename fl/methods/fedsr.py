"""FedSR: simple representations, drawn from a distribution that is held near 0 and near its class.

Nguyen, Torr, Lim. FedSR: A Simple and Effective Domain Generalization Method for Federated
Learning. NeurIPS 2022.

Family: features. Exchanged: model, a layer above its features. Local: reference distributions by
class. Key: `alpha_l2r`.

A linear layer on the model's features gives the mean and the deviation of a representation as wide
as they are, which goes into the model's classifier. In the released code that layer replaces the
model's last layer, and its width is free. As there, the reference distributions r(z|y) and their
scale stay with the client, and the losses are those of one draw. Tests are by the mean
representation, where the released code averages probabilities over draws. That code counts clients
alike, as here under ``weighting: uniform``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    BuildContext,
    Forward,
    Method,
    NonNegative,
    Predictor,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    Tree,
    Variables,
    Weights,
    classification_loss,
    declare,
    keyed,
    recipe,
    rng,
    shared_model,
    single_pass,
    trees,
    weighted_mean,
)
from fl.blocks.linear_layers import feature_width, head_outputs, head_parameters

NOISE = 0
"""Stream of a sample's key."""


class FedSRServer(RecipeServer):
    """State of the server.

    Attributes:
        encoder: ``weight`` [2 d, d] and ``bias`` [2 d] of the probabilistic layer.
    """

    encoder: Weights


class FedSRUpload(RecipeUpload):
    """Upload of a client.

    Attributes:
        encoder: As in `FedSRServer`.
    """

    encoder: Weights


class FedSRModel(Variables):
    """Model that is scored.

    Attributes:
        encoder: As in `FedSRServer`.
    """

    encoder: Weights


@declare("global")
class FedSR:
    """FedAvg of a model with a probabilistic representation.

    Attributes:
        alpha_l2r: Weight of the norm of representations.
        alpha_cmi: Weight of the conditional mutual information of representation and sample, given
            the class: the KL divergence from r(z|y).
    """

    alpha_l2r: NonNegative = 0.01
    alpha_cmi: NonNegative = 0.001

    def build(self, context: BuildContext) -> Method:
        """FedAvg of a model with a probabilistic layer."""
        base = recipe(
            context, terms=(self.term,), personal_params=partial(personal_params, context)
        )
        steps, local = FedSRSteps(base, context), single_pass(base)
        step = replace(
            local,
            begin=steps.begin,
            end=steps.end,
            sampling=replace(local.sampling, needs_keys=True),
        )
        views = {"global": Predictor(view, steps.predict, is_per_sample=True)}
        return replace(base, init=steps.init, passes=(step,), views=views)

    def term(self, forward: Forward) -> Tensor:
        """CE + alpha_l2r E||z|| + alpha_cmi KL(p(z|x) || r(z|y)), the mean over the batch."""
        params, batch = forward.personal_params, forward.batch
        mu, sigma = distribution(params["encoder"], forward.output.features.flatten(1))
        z = mu + sigma * normal(batch["key"], mu)
        logits = head_outputs(head_parameters(forward.network, forward.params), z)
        norms = weighted_mean(z.norm(dim=1), batch)
        divergences = weighted_mean(divergence(mu, sigma, params["reference"], batch["y"]), batch)
        simple = self.alpha_l2r * norms + self.alpha_cmi * divergences
        return classification_loss(logits, batch) + simple


@dataclass(frozen=True, eq=False)
class FedSRSteps:
    """Functions of the pass of FedSR, and of its view.

    Attributes:
        base: FedAvg with a probabilistic layer.
        context: The context in which the method is built.
    """

    base: Recipe
    context: BuildContext

    def init(self, variables: Variables) -> tuple[FedSRServer, RecipeClient]:
        """Return FedAvg's states; the layer is the server's."""
        server, client = self.base.init(variables)
        client_params = dict(client["personal_params"])
        client["personal_params"] = client_params
        return {**server, "encoder": client_params.pop("encoder")}, client

    def begin(self, server: FedSRServer, client: RecipeClient) -> RecipeWork:
        """Begin training at the server's layer."""
        client_params = {"encoder": server["encoder"], **client["personal_params"]}
        return single_pass(self.base).begin(server, {**client, "personal_params": client_params})

    def end(
        self, server: FedSRServer, client: RecipeClient, work: RecipeWork
    ) -> tuple[RecipeClient, FedSRUpload]:
        """Upload the trained layer."""
        client, upload = single_pass(self.base).end(server, client, work)
        client_params = dict(client["personal_params"])
        trained = client_params.pop("encoder")
        return {**client, "personal_params": client_params}, {**upload, "encoder": trained}

    def predict(self, variables: FedSRModel, memory: Tree, x: Tensor) -> Tensor:
        """Return the outputs for the mean representation."""
        output = self.context.network.eval(variables["params"], variables["buffers"], x)
        mean, _ = distribution(variables["encoder"], output.features.flatten(1))
        return head_outputs(head_parameters(self.context.network, variables["params"]), mean)


def personal_params(context: BuildContext, variables: Variables) -> Tree:
    """Return the first weights of the layer and of r(z|y)."""
    template = trees.leaves(variables["params"])[0]
    size = feature_width(context.network, variables["params"])
    table = template.new_zeros((context.classes, size))
    reference = {"mu": table, "sigma": table + 1, "scale": template.new_ones(())}
    return {"encoder": encoder(size, context.seed, template), "reference": reference}


def view(server: FedSRServer, client: object) -> FedSRModel:
    """Return the shared model and the layer, as a view."""
    return {**shared_model(server, None), "encoder": server["encoder"]}


def encoder(size: int, seed: int, template: Tensor) -> dict[str, Tensor]:
    """A linear layer from ``size`` features to twice as many, initialised as PyTorch does."""
    draw = torch.Generator().manual_seed(rng.torch_seed(seed, "fedsr"))
    bound = 1 / math.sqrt(size)

    def uniform(*shape: int) -> Tensor:
        values = torch.rand(*shape, generator=draw, dtype=torch.float64) * 2 - 1
        return (values * bound).to(template)

    return {"weight": uniform(2 * size, size), "bias": uniform(2 * size)}


def distribution(layer: Weights, features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the representation, [b, d] each, of features [b, d]."""
    outputs = F.linear(features, layer["weight"], layer["bias"])
    size = features.shape[1]
    return outputs[:, :size], F.softplus(outputs[:, size:])


def normal(key: Tensor, template: Tensor) -> Tensor:
    """Standard normal numbers [b, d], by keys [b]."""
    # Away from 0, whose normal number would be infinite.
    uniform = keyed.uniform(key, NOISE, tuple(template.shape[1:])).clamp(min=1e-12)
    return (math.sqrt(2) * torch.erfinv(2 * uniform - 1)).to(template.dtype)


def divergence(mu: Tensor, sigma: Tensor, reference: Tree, labels: Tensor) -> Tensor:
    """KL(N(c mu, (c sigma)^2) || r(z|y)) of every sample, [b], with the client's scale c."""
    wide = F.softplus(reference["sigma"])[labels]
    centre, scale = reference["mu"][labels], reference["scale"]
    scaled, spread = mu * scale, sigma * scale
    ratio = (spread.square() + (scaled - centre).square()) / (2 * wide.square())
    return (wide.log() - spread.log() + ratio - 0.5).sum(1)
