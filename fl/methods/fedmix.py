"""FedMix: samples are mixed, to first order, with the mean sample of a client that is drawn.

Yoon, Shin, Hwang, Yang. FedMix: Approximation of Mixup under Mean Augmented Federated Learning.
ICLR 2021. arXiv:2107.00233.

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

MEANS = "means"
WHICH = 0
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
            like, clients = trees.leaves(variables["params"])[0], context.clients
            means = {
                "x": like.new_zeros((clients, *shape)),
                "y": like.new_zeros((clients, classes)),
                "known": like.new_zeros(clients),
            }
            return {**server, MEANS: means}, client

        def look(server: Tree, client: Tree, sent: Tree, batch: Batch) -> Tree:
            weight = batch["weight"]
            labels = F.one_hot(batch["y"], classes).to(weight.dtype)
            return {
                "x": torch.tensordot(weight, batch["x"], dims=1),
                "y": weight @ labels,
                "known": weight.sum(),
            }

        def end(server: Tree, client: Tree, sent: Tree, seen: Tree) -> tuple[Tree, Tree]:
            count = seen["known"].clamp(min=1)
            means = {"x": seen["x"] / count, "y": seen["y"] / count}
            return dict(client), {**means, "known": (seen["known"] > 0).to(count.dtype)}

        def gather(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
            means = trees.replace_clients(server[MEANS], clients["id"], uploads)
            return {**server, MEANS: means}, dict(clients)

        def loss(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            return local.loss(server, work, {**batch, "x": (1 - self.lam) * batch["x"]})

        everybody = context.training.participation == 1 and not context.training.stragglers
        before = Phase(
            (Sweep(look, end),),
            gather,
            is_active=lambda round_: round_ == 1 or not everybody,
            send=lambda server: {},
        )
        draws = replace(local.sampling, needs_keys=True)
        step = replace(local, loss=loss, sampling=draws)
        return replace(base, init=init, earlier_phases=(before,), passes=(step,))

    def mixed(self, forward: Forward) -> Tensor:
        """The loss of a batch whose inputs are scaled by 1 - lambda."""
        batch, outputs, means = forward.batch, forward.output.outputs, forward.shared[MEANS]
        chosen = drawn(means["known"], batch["key"][0])
        x, y = means["x"][chosen], means["y"][chosen]
        plain = classification_loss(outputs, batch)
        other = weighted_mean(-(F.log_softmax(outputs, -1) * y).sum(-1), batch)
        along = (slope(forward) * x).sum()
        return (1 - self.lam) * plain + self.lam * (other + along)


def drawn(known: Tensor, key: Tensor) -> Tensor:
    """One of the places [K] of which the mean is known, drawn by a key; the first, if none is."""
    number = (keyed.uniform(key, WHICH) * known.sum()).floor()
    return ((known.cumsum(0) > number) & (known > 0)).to(torch.int64).argmax(0, keepdim=True)


def slope(forward: Forward) -> Tensor:
    """The derivative of the batch's mean cross-entropy with respect to its inputs, [b, ...]."""
    batch, network = forward.batch, forward.network

    def value(x: Tensor) -> Tensor:
        # A copy, as what counts operations cannot look at a layer whose input is a leaf.
        seen = network.train(
            forward.params, forward.work["buffers"], x.clone(), nested=True, key=batch.get("key")
        )
        return classification_loss(seen.outputs, batch)

    gradient: Tensor = grad(value)(batch["x"])
    return gradient
