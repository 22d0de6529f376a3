"""FedSR: simple representations, drawn from a distribution that is held near 0 and near its class.

Nguyen, Torr, Lim. FedSR: A Simple and Effective Domain Generalization Method for Federated
Learning. NeurIPS 2022.

Family: features. Exchanged: model, a layer above its features. Local: reference distributions by
class. Key: `alpha_l2r`.

A linear layer on the model's features gives the mean and the deviation of a representation as wide
as they are, which goes into the model's classifier. In the released code that layer replaces the
model's last layer, and its width is free. As there, the reference distributions r(z|y) and their
scale stay with the client, and the losses are those of one draw. Tests are by the mean
representation, where the released code averages probabilities over draws.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    PERSONAL_PARAMS,
    BuildContext,
    Forward,
    Method,
    NonNegative,
    Predictor,
    Tree,
    classification_loss,
    declare,
    keyed,
    recipe,
    rng,
    shared,
    single_pass,
    trees,
    weighted_mean,
)
from fl.blocks.linear_layers import feature_width, head_outputs, head_parameters

ENCODER = "encoder"
NOISE = 0
"""Stream of a sample's key."""


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
        network = context.network

        def personal_params(variables: Tree) -> Tree:
            template = trees.leaves(variables["params"])[0]
            size = feature_width(network, variables["params"])
            table = template.new_zeros((context.classes, size))
            reference = {"mu": table, "sigma": table + 1, "scale": template.new_ones(())}
            return {ENCODER: encoder(size, context.seed, template), "reference": reference}

        base = recipe(context, terms=(self.term,), personal_params=personal_params)
        local = single_pass(base)

        def init(variables: Tree) -> tuple[Tree, Tree]:
            server, client = base.init(variables)
            client_params = dict(client[PERSONAL_PARAMS])
            return {**server, ENCODER: client_params.pop(ENCODER)}, {
                **client,
                PERSONAL_PARAMS: client_params,
            }

        def begin(server: Tree, client: Tree) -> Tree:
            client_params = {ENCODER: server[ENCODER], **client[PERSONAL_PARAMS]}
            return local.begin(server, {**client, PERSONAL_PARAMS: client_params})

        def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
            client_state, upload = local.end(server, client, work)
            client_params = dict(client_state[PERSONAL_PARAMS])
            trained = client_params.pop(ENCODER)
            return {**client_state, PERSONAL_PARAMS: client_params}, {**upload, ENCODER: trained}

        def predict(variables: Tree, memory: Tree, x: Tensor) -> Tensor:
            output = network.eval(variables["params"], variables["buffers"], x)
            mean, _ = distribution(variables[ENCODER], output.features.flatten(1))
            return head_outputs(head_parameters(network, variables["params"]), mean)

        def view(server: Tree, client: Tree | None) -> Tree:
            return {**shared(server, None), ENCODER: server[ENCODER]}

        step = replace(
            local, begin=begin, end=end, sampling=replace(local.sampling, needs_keys=True)
        )
        views = {"global": Predictor(view, predict, is_per_sample=True)}
        return replace(base, init=init, passes=(step,), views=views)

    def term(self, forward: Forward) -> Tensor:
        """CE + alpha_l2r E||z|| + alpha_cmi KL(p(z|x) || r(z|y)), the mean over the batch."""
        params, batch = forward.personal_params, forward.batch
        mu, sigma = distribution(params[ENCODER], forward.output.features.flatten(1))
        z = mu + sigma * normal(batch["key"], mu)
        logits = head_outputs(head_parameters(forward.network, forward.params), z)
        norms = weighted_mean(z.norm(dim=1), batch)
        divergences = weighted_mean(divergence(mu, sigma, params["reference"], batch["y"]), batch)
        simple = self.alpha_l2r * norms + self.alpha_cmi * divergences
        return classification_loss(logits, batch) + simple


def encoder(size: int, seed: int, template: Tensor) -> dict[str, Tensor]:
    """A linear layer from ``size`` features to twice as many, initialised as PyTorch does."""
    draw = torch.Generator().manual_seed(rng.torch_seed(seed, "fedsr"))
    bound = 1 / math.sqrt(size)

    def uniform(*shape: int) -> Tensor:
        values = torch.rand(*shape, generator=draw, dtype=torch.float64) * 2 - 1
        return (values * bound).to(template)

    return {"weight": uniform(2 * size, size), "bias": uniform(2 * size)}


def distribution(layer: Tree, features: Tensor) -> tuple[Tensor, Tensor]:
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
