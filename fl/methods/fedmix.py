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
    Share,
    Sweep,
    Tree,
    classification_loss,
    declare,
    keyed,
    recipe,
    single_pass,
    trees,
    weighted_mean,
)

MEAN_SAMPLES = "means"
CHOICE_STREAM = 0
"""Stream of a batch's keys."""


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
        local, shape, classes = single_pass(base), context.shape, context.classes

        def init(variables: Tree) -> tuple[Tree, Tree]:
            server, client = base.init(variables)
            template, clients = trees.leaves(variables["params"])[0], context.clients
            mean_samples = {
                "x": template.new_zeros((clients, *shape)),
                "y": template.new_zeros((clients, classes)),
                "known": template.new_zeros(clients),
            }
            return {**server, MEAN_SAMPLES: mean_samples}, client

        def look(server: Tree, client: Tree, upload: Tree, batch: Batch) -> Tree:
            weight = batch["weight"]
            labels = F.one_hot(batch["y"], classes).to(weight.dtype)
            return {
                "x": torch.tensordot(weight, batch["x"], dims=1),
                "y": weight @ labels,
                "known": weight.sum(),
            }

        def end(server: Tree, client: Tree, upload: Tree, totals: Tree) -> tuple[Tree, Tree]:
            count = totals["known"].clamp(min=1)
            mean_samples = {"x": totals["x"] / count, "y": totals["y"] / count}
            return dict(client), {**mean_samples, "known": (totals["known"] > 0).to(count.dtype)}

        def gather(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
            mean_samples = trees.replace_clients(server[MEAN_SAMPLES], clients["id"], uploads)
            return {**server, MEAN_SAMPLES: mean_samples}, dict(clients)

        def loss(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            return local.loss(server, work, {**batch, "x": (1 - self.lam) * batch["x"]})

        is_full_participation = (
            context.training.participation == 1 and not context.training.stragglers
        )
        collection_phase = Phase(
            (Sweep(look, end),),
            gather,
            is_active=lambda round_: round_ == 1 or not is_full_participation,
            send=lambda server: {},
        )
        draws = replace(local.sampling, needs_keys=True)
        step = replace(local, loss=loss, sampling=draws)
        return replace(base, init=init, earlier_phases=(collection_phase,), passes=(step,))

    def mixed(self, forward: Forward) -> Tensor:
        """The loss of a batch whose inputs are scaled by 1 - lambda."""
        batch, outputs, mean_samples = (
            forward.batch,
            forward.output.outputs,
            forward.shared[MEAN_SAMPLES],
        )
        chosen = draw_client(mean_samples["known"], batch["key"][0])
        x, y = mean_samples["x"][chosen], mean_samples["y"][chosen]
        plain = classification_loss(outputs, batch)
        other_loss = weighted_mean(-(F.log_softmax(outputs, -1) * y).sum(-1), batch)
        input_term = (slope(forward) * x).sum()
        return (1 - self.lam) * plain + self.lam * (other_loss + input_term)


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
