"""GPFL: class embeddings that all clients share guide features, which each client then conditions.

Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan. GPFL: Simultaneously Learning Global and Personalized
Feature Information for Personalized Federated Learning. ICCV 2023. arXiv:2308.10279.

Family: personal layers. Exchanged: body, class embeddings, conditions. Local: head. Key: `lam`.

The condition of the generic features is the mean embedding, that of the personal features the mean
by the client's class shares; both are of the embeddings that were sent. In the authors' code
(TsingZ0/PFLlib, d832e76) they are of the client's own embeddings of before, and the distance
between features and embeddings is one norm over the batch, which grows with it; here it is a mean
over samples.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    BuildContext,
    Forward,
    Method,
    NonNegative,
    Predictor,
    RecipeClient,
    RecipeServer,
    Tree,
    Variables,
    Weights,
    classification_loss,
    declare,
    personal_model,
    recipe,
    rng,
    trees,
    weighted_mean,
    weights_in,
)
from fl.blocks.calibration import with_class_counts
from fl.blocks.linear_layers import (
    feature_width,
    head_outputs,
    head_parameters,
    linear_outputs,
    linear_parameters,
)

SMALLEST_SQUARE = 1e-12
"""Floor below square roots, so that equal vectors have a gradient."""


class Conditions(TypedDict):
    """Shared parameters.

    Attributes:
        embeddings: Embedding e of each class, [C, d].
        gamma: Layer that makes the scale of a condition: ``weight`` [d, d], ``bias`` [d], and the
            ``scale`` [d] and ``shift`` [d] of its normalisation.
        beta: Layer that makes the shift, as ``gamma``.
    """

    embeddings: Tensor
    gamma: Weights
    beta: Weights


class GPFLModel(Variables):
    """Model of a client that is scored.

    Attributes:
        shared_params: The server's `Conditions`.
        condition: The client's condition, [d].
    """

    shared_params: Conditions
    condition: Tensor


@declare("personal", title="GPFL")
class GPFL:
    """FedAvg of the body with shared class embeddings and conditions.

    Attributes:
        lam: Weight of the distance between generic features and their class embedding.
        mu: Weight decay of embeddings and conditional layers.
    """

    lam: NonNegative = 0.01
    mu: NonNegative = 0.1

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg of the body; loss CE(h(z_P)) + CE(cos(z_G, e)) + lam ||z_G - e_y||."""
        network = context.network

        def start(variables: Variables) -> Conditions:
            return self.shared_parameters(context, variables)

        base = recipe(
            context, terms=(self.loss,), local=weights_in(network.head), shared_params=start
        )

        def predict(variables: GPFLModel, memory: Tree, x: Tensor) -> Tensor:
            output = network.eval(variables["params"], variables["buffers"], x)
            features = conditioned(
                variables["shared_params"], output.features.flatten(1), variables["condition"]
            )
            return head_outputs(head_parameters(network, variables["params"]), features)

        views = {"personal": Predictor(own_model, predict, is_per_sample=True)}
        return replace(with_class_counts(base), views=views)

    def loss(self, forward: Forward) -> Tensor:
        """Return CE(h(z_P)) + CE(cos(z_G, e)) + lam ||z_G - e_y|| + mu/2 ||e, layers||^2."""
        params, batch = forward.shared_params, forward.batch
        features = forward.output.features.flatten(1)
        embeddings = forward.server["shared_params"]["embeddings"]
        personal_features = conditioned(
            params, features, personal_condition(forward.work["counts"], embeddings)
        )
        head = head_parameters(forward.network, forward.params)
        of_head = classification_loss(head_outputs(head, personal_features), batch)
        generic = conditioned(params, features, embeddings.mean(0))
        cosines = F.normalize(generic, dim=-1) @ F.normalize(params["embeddings"], dim=-1).T
        gaps = (generic - embeddings[batch["y"]]).square().sum(-1)
        distance = weighted_mean(gaps.clamp(min=SMALLEST_SQUARE).sqrt(), batch)
        of_embeddings = classification_loss(cosines, batch)
        return (
            of_head + of_embeddings + self.lam * distance + self.mu / 2 * trees.squared_norm(params)
        )

    def shared_parameters(self, context: BuildContext, variables: Variables) -> Conditions:
        """Embeddings [C, d], and two layers that make scale and shift of a condition."""
        leaf = trees.leaves(variables["params"])[0]
        width = feature_width(context.network, variables["params"])
        generator = torch.Generator().manual_seed(rng.torch_seed(context.seed, "gpfl"))
        normal = torch.randn(context.classes, width, generator=generator, dtype=torch.float64)

        def layer() -> dict[str, Tensor]:
            linear = linear_parameters(generator, leaf, width, width)
            norm = {"scale": leaf.new_ones(width), "shift": leaf.new_zeros(width)}
            return {**linear, **norm}

        return {"embeddings": normal.to(leaf), "gamma": layer(), "beta": layer()}


def own_model(server: RecipeServer, client: RecipeClient) -> GPFLModel:
    """Return a client's model with the layers and its condition, as a view."""
    shared: Conditions = server["shared_params"]
    condition = personal_condition(client["counts"], shared["embeddings"])
    model = personal_model(server, client)
    return {**model, "shared_params": shared, "condition": condition}


def personal_condition(counts: Tensor, embeddings: Tensor) -> Tensor:
    """Return the mean embedding by a client's class shares, [d]; 0 without samples."""
    counts = counts.to(embeddings.dtype)
    return counts @ embeddings / counts.sum().clamp(min=1)


def conditioned(params: Tree, features: Tensor, condition: Tensor) -> Tensor:
    """Return ReLU((1 + gamma(c)) z + beta(c)) of features z [b, d] and a condition c [d]."""
    gamma, beta = (_conditional(params[name], condition) for name in ("gamma", "beta"))
    return F.relu((1 + gamma) * features + beta)


def _conditional(layer: Weights, condition: Tensor) -> Tensor:
    """A linear layer, ReLU and layer normalisation of a vector [d]."""
    hidden = F.relu(linear_outputs(layer, condition))
    return F.layer_norm(hidden, hidden.shape[-1:], layer["scale"], layer["shift"])
