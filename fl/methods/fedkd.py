"""FedKD: a private mentor and a shared mentee teach each other; changes are sent with low rank.

Wu, Wu, Lyu, Huang, Xie. Communication-Efficient Federated Learning via Knowledge Distillation.
Nature Communications 13, 2032 (2022). arXiv:2108.13323.

Family: distillation. Exchanged: model, whose changes have low rank. Local: mentor model, matrix
between features. Key: `energy_start`.

Both models see the same batches. Each has the loss CE + [KL(other || own) + MSE(z_v, W z_w)] /
(CE_v + CE_w) with features z_v of the mentor and z_w of the mentee: who is uncertain teaches less.
W is a matrix of the client's own. The mentee's changes are sent as the product of few singular
vectors, and so is their mean: as many as hold the share T(t) of the sum of squares, which grows
from round to round. Here, the other's outputs and the divisor are fixed in a step, W is trained by
the mentee's loss, and both models have one architecture. Convolutions are matrices [filters, rest].
Bytes are counted as of whole matrices. The authors' code (wuch15/FedKD, 9b9e63f) lets gradients
flow everywhere, divides KL by the number of classes as well, and adds the MSE of both models up in
one loss.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from fl.api import (
    Bound,
    BuildContext,
    Forward,
    Method,
    NonNegative,
    Output,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    Variables,
    WeightedAverage,
    Weights,
    classification_loss,
    cross_entropy,
    declare,
    rng,
    single_pass,
    trees,
    weighted_mean,
)
from fl.blocks.anchors import features_of
from fl.blocks.linear_layers import feature_width, linear_parameters
from fl.blocks.private_model import divergence, with_private_model

PROJECTION = "projection of features"
EnergyShare = Annotated[float, Bound(above=0, high=1)]


class FedKDServer(RecipeServer):
    """State of the server.

    Attributes:
        energy: Share T of the energy that matrices keep in this round, [].
        round: Number of this round, [].
    """

    energy: Tensor
    round: Tensor


@declare("global", "personal", title="FedKD")
class FedKD:
    """FedAvg of a mentee and a private mentor, with adaptive mutual distillation.

    Attributes:
        distillation: Weight of both distances between the models; 0: they do not see each other.
        energy_start: Share T of the energy that matrices keep, at the beginning of training.
        energy_end: Share in the last round; 1: matrices are sent as they are.
    """

    distillation: NonNegative = 1.0
    energy_start: EnergyShare = 0.95
    energy_end: EnergyShare = 0.98

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg of low-rank changes, beside private models."""
        base = with_private_model(context, self.loss, partial(projection, context))
        local = single_pass(base)

        def init(variables: Variables) -> tuple[FedKDServer, RecipeClient]:
            server, client = base.init(variables)
            number = trees.leaves(variables["params"])[0].new_ones(())
            return {**server, "energy": self.energy(number, context), "round": number}, client

        def end(
            server: FedKDServer, client: RecipeClient, work: RecipeWork
        ) -> tuple[RecipeClient, RecipeUpload]:
            client, upload = local.end(server, client, work)
            return client, {**upload, "params": compressed_params(server, upload["params"])}

        def aggregate(
            server: FedKDServer, clients: RecipeClient, uploads: RecipeUpload, n: Tensor
        ) -> tuple[FedKDServer, RecipeClient]:
            mean, number = trees.mean(uploads, n), server["round"] + 1
            params, energy = compressed_params(server, mean["params"]), self.energy(number, context)
            return {**server, **mean, "params": params, "energy": energy, "round": number}, clients

        step = replace(local, end=end)
        return replace(base, init=init, passes=(step,), aggregate=WeightedAverage(aggregate))

    def energy(self, number: Tensor, context: BuildContext) -> Tensor:
        """Return T of a round, from its number."""
        progress = (number / context.training.rounds).clamp(max=1)
        return self.energy_start + (self.energy_end - self.energy_start) * progress

    def loss(self, forward: Forward, mentor: Output) -> Tensor:
        """Return the sum of both losses; each trains its own model alone."""
        batch, mentee = forward.batch, forward.output
        mentee_loss = cross_entropy(forward)
        mentor_loss = classification_loss(mentor.outputs, batch)
        weight = self.distillation / (mentee_loss + mentor_loss).detach()
        z_v, z_w = features_of(mentor), features_of(mentee)
        projection = forward.personal_params[PROJECTION]

        def gap(first: Tensor, second: Tensor) -> Tensor:
            return weighted_mean((first - second).square().mean(-1), batch)

        to_mentee = divergence(mentor.outputs, mentee.outputs, batch)
        to_mentor = divergence(mentee.outputs, mentor.outputs, batch)
        to_mentee = to_mentee + gap(z_v.detach(), z_w @ projection.T)
        to_mentor = to_mentor + gap(z_v, (z_w @ projection.T).detach())
        return mentee_loss + mentor_loss + weight * (to_mentee + to_mentor)


def projection(context: BuildContext, variables: Variables) -> dict[str, Tensor]:
    """Draw the first W, [d, d], a parameter of each client's own."""
    leaf = trees.leaves(variables["params"])[0]
    width = feature_width(context.network, variables["params"])
    generator = torch.Generator().manual_seed(rng.torch_seed(context.seed, "fedkd"))
    return {PROJECTION: linear_parameters(generator, leaf, width, width)["weight"]}


def compressed_params(server: FedKDServer, params: Weights) -> Weights:
    """Return parameters whose change from the server's has a low rank."""
    changes = trees.apply(torch.sub, params, server["params"])
    return trees.apply(torch.add, server["params"], low_rank(changes, server["energy"]))


def low_rank(tree: Weights, energy: Tensor) -> Weights:
    """Return a tree whose weights are replaced by matrices of the smallest rank with this energy.

    The energy of a matrix is the sum of its squared singular values. A weight of more dimensions is
    the matrix [outputs, all others]. Leaves of one dimension, such as biases, stay.

    Args:
        tree: Parameters of one model, or changes of them.
        energy: Share of the energy that is kept, above 0 and at most 1, a scalar.
    """
    return trees.apply(lambda leaf: low_rank_weight(leaf, energy) if leaf.dim() > 1 else leaf, tree)


def low_rank_weight(tensor: Tensor, energy: Tensor) -> Tensor:
    """Return a weight with the largest singular values alone; NaN if it is not finite."""
    matrix = tensor.flatten(1)
    is_finite = matrix.isfinite().all()
    u, values, v = torch.linalg.svd(torch.where(is_finite, matrix, 0), full_matrices=False)
    # What is left out is compared, since a sum that is nearly the whole would round.
    remainder = values.square().flip(-1).cumsum(-1).flip(-1)
    largest = values * (remainder > (1 - energy.to(values.dtype)) * remainder[:1])
    return torch.where(is_finite, (u * largest) @ v, torch.nan).reshape(tensor.shape)
