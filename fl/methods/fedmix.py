"""FedMix: samples are mixed, to first order, with the mean sample of a client that is drawn.

Yoon, Shin, Hwang, Yang. FedMix: Approximation of Mixup under Mean Augmented Federated Learning.
ICLR 2021. arXiv:2107.00233.

Family: features. Exchanged: model; once, mean samples. Local: nothing. Key: `lam`.

Clients send the mean of all their inputs and labels (the paper's M_k = all, as in its main table),
and the server sends all of these means on. Each step draws one of them. By the paper's proposition
the loss is (1 - lambda) l(f(x'), y) + lambda l(f(x'), y_g) + lambda <dl/dx', x_g>, with x' = (1 -
lambda) x and the derivative that of l(f(x'), y); here it is the mean over the batch of all three.
The derivative comes from a separate look at the batch, which moves no running statistics. Where
only some clients take part in a round, the means are known of those that took part so far.
`class_weights` and `label_smoothing` change l(f(x'), y) and its derivative, not l(f(x'), y_g).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from fl.api import (
    Batch,
    BuildContext,
    FedloomError,
    Forward,
    Method,
    Phase,
    RecipeClient,
    RecipeServer,
    RecipeWork,
    Share,
    Sweep,
    Tree,
    Variables,
    classification_loss,
    declare,
    keyed,
    recipe,
    single_pass,
    trees,
    weighted_mean,
)
from fl.blocks.first_round import means_of_samples, send_nothing

CHOICE_STREAM = 0
"""Stream of a batch's keys."""


class MeanSamples(TypedDict):
    """Mean sample of each client.

    Attributes:
        x: Its mean input, [clients, ...].
        y: The mean of its labels, each a vector of 0 and one 1, [clients, classes].
        known: 1 if the server has got them from the client, else 0, [clients].
    """

    x: Tensor
    y: Tensor
    known: Tensor


class FedMixServer(RecipeServer):
    """State of the server.

    Attributes:
        means: Mean samples of all clients.
    """

    means: MeanSamples


@declare("global", one_input=True)
class FedMix:
    """Mixup with mean samples of other clients.

    Attributes:
        lam: Share lambda of the mean sample (the paper: .05 for CIFAR-10, .1 for CIFAR-100, .2 for
            FEMNIST).
    """

    lam: Share = 0.05

    def build(self, context: BuildContext) -> Method:
        """FedAvg on the mixed loss, after a phase that brings the means."""
        if context.network.uses_tokens:
            raise FedloomError("fedmix: inputs are tokens. Allowed: numbers, which can be averaged")
        base = recipe(context, terms=(self.mixed,))
        local = single_pass(base)

        def init(variables: Variables) -> tuple[FedMixServer, RecipeClient]:
            server, client = base.init(variables)
            return {**server, "means": no_means(context, variables)}, client

        def loss(server: FedMixServer, work: RecipeWork, batch: Batch) -> tuple[Tensor, Tree]:
            return local.loss(server, work, {**batch, "x": (1 - self.lam) * batch["x"]})

        training = context.training
        has_all = training.participation == 1 and not training.stragglers
        collection = Phase(
            (mean_sample(context.classes),),
            gather,
            is_active=lambda round_: round_ == 1 or not has_all,
            send=send_nothing,
        )
        step = replace(local, loss=loss, sampling=replace(local.sampling, needs_keys=True))
        return replace(base, init=init, earlier_phases=(collection,), passes=(step,))

    def mixed(self, forward: Forward) -> Tensor:
        """The loss of a batch whose inputs are scaled by 1 - lambda."""
        batch, outputs = forward.batch, forward.output.outputs
        server: FedMixServer = forward.server
        means = server["means"]
        chosen = draw_client(means["known"], batch["key"][0])
        x, y = means["x"][chosen], means["y"][chosen]
        plain = classification_loss(outputs, batch)
        other_loss = weighted_mean(-(F.log_softmax(outputs, -1) * y).sum(-1), batch)
        input_term = (slope(forward) * x).sum()
        return (1 - self.lam) * plain + self.lam * (other_loss + input_term)


def no_means(context: BuildContext, variables: Variables) -> MeanSamples:
    """Return zeros, as the server knows no client's mean sample yet."""
    template, clients = trees.leaves(variables["params"])[0], context.clients
    return {
        "x": template.new_zeros((clients, *context.shape)),
        "y": template.new_zeros((clients, context.classes)),
        "known": template.new_zeros(clients),
    }


def mean_sample(classes: int) -> Sweep:
    """Return a sweep after which a client uploads its row of `MeanSamples`."""

    def sums(server: Tree, client: RecipeClient, upload: Tree, batch: Batch) -> Tree:
        weight = batch["weight"]
        labels = F.one_hot(batch["y"], classes).to(weight.dtype)
        return {
            "x": torch.tensordot(weight, batch["x"], dims=1),
            "y": weight @ labels,
            "count": weight.sum(),
        }

    means = means_of_samples(sums)

    def end(
        server: Tree, client: RecipeClient, upload: Tree, totals: Tree
    ) -> tuple[RecipeClient, Tree]:
        client, upload = means.end(server, client, upload, totals)
        return client, {**upload, "known": (totals["count"] > 0).to(totals["count"].dtype)}

    return replace(means, end=end)


def gather(
    server: FedMixServer, clients: RecipeClient, uploads: MeanSamples, n: Tensor
) -> tuple[FedMixServer, RecipeClient]:
    """Put the mean samples of the participants in their places, for `FedMixServer`."""
    means = trees.replace_clients(server["means"], clients["id"], uploads)
    return {**server, "means": means}, clients


def draw_client(has_mean: Tensor, key: Tensor) -> Tensor:
    """One of the places [K] of which the mean is known, drawn by a key; the first, if none is."""
    number = (keyed.uniform(key, CHOICE_STREAM) * has_mean.sum()).floor()
    return ((has_mean.cumsum(0) > number) & (has_mean > 0)).to(torch.int64).argmax(0, keepdim=True)


def slope(forward: Forward) -> Tensor:
    """The derivative of the batch's mean cross-entropy with respect to its inputs, [b, ...]."""
    batch, network = forward.batch, forward.network

    def value(x: Tensor) -> Tensor:
        # A copy, as what counts operations cannot look at a layer whose input is a leaf.
        output = network.train(
            forward.params, forward.work["buffers"], x.clone(), nested=True, key=batch.get("key")
        )
        return classification_loss(output.outputs, batch)

    gradient: Tensor = grad(value)(batch["x"])
    return gradient
