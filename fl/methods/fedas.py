"""FedAS: each client fits the shared body to its last one, and weighs by its Fisher information.

Yang, Huang, Ye. FedAS: Bridging Inconsistency in Personalized Federated Learning. CVPR 2024.

Family: personal layers. Exchanged: body, a number. Local: head, last body, mean features by class.
Key: `align_lr`.

The head stays with the client. The arrived body is trained until its features of each class are
near the mean that the client's last body had for that class. Weights of the average are traces of
the Fisher information: the mean over samples of the squared length of a sample's gradient. PFLlib's
code (d832e76) sums squared gradients of batches in place of samples, and sums the alignment over
the classes of a batch, where it is a mean over samples here. As in that code, a client is scored
with the model that it trained last, unless ``scored`` says otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad, vmap

from fl.api import (
    COUNTS,
    Batch,
    BuildContext,
    Count,
    Inputs,
    Method,
    NonNegative,
    Pass,
    Rate,
    Sampling,
    Sweep,
    Tree,
    WeightedAverage,
    declare,
    personal,
    recipe,
    single_pass,
    trees,
    weighted_mean,
    weights_in,
)
from fl.blocks.anchors import means_from_sums, sums_by_class
from fl.blocks.participation import ROUNDS, with_participation
from fl.blocks.reweighting import reweighted_mean, weighted_upload
from fl.blocks.trained_view import TRAINED, with_trained_view

PROTOTYPES = "prototypes"
"""Key of a client's mean features by class, [C, d], under its last body."""


@declare("personal", title="FedAS")
class FedAS:
    """FedAvg of the body, aligned by the client, with weights by Fisher information.

    Attributes:
        align_epochs: Epochs of the alignment.
        align_lr: Learning rate of the alignment; 0 leaves the body as it arrives.
        scored: Evaluated model: the one that the client `trained` last, or the shared body as it
            `arrives`, with the client's head.
    """

    align_epochs: Count = 1
    align_lr: NonNegative = 0.01
    scored: Literal["trained", "arrives"] = "trained"

    def build(self, context: BuildContext) -> Method:
        """Return the prototypes of the last body, alignment, training, and the Fisher trace."""
        plain = recipe(context, local=weights_in(context.network.head))
        base = with_trained_view(with_participation(plain))
        local = single_pass(base)

        def look(server: Tree, client: Tree, upload: Tree, batch: Batch) -> Tree:
            return sums_by_class(context.network, client[TRAINED], batch, context.classes)

        def keep(server: Tree, client: Tree, upload: Tree, totals: Tree) -> tuple[Tree, Tree]:
            class_means, _ = means_from_sums(totals["sums"], totals["counts"])
            return {**client, PROTOTYPES: class_means}, {}

        def begin(server: Tree, client: Tree) -> Tree:
            return local.begin({**server, "params": client["aligned"]}, client)

        def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
            client_state, upload = local.end(server, client, work)
            return {key: leaf for key, leaf in client_state.items() if key != "aligned"}, upload

        passes = (
            Sweep(look, keep),
            self.alignment(context),
            replace(local, begin=begin, end=end),
            fisher_sweep(context),
        )
        views = base.views if self.scored == "trained" else {"personal": personal}
        aggregate = WeightedAverage(reweighted_average)
        return replace(base, passes=passes, aggregate=aggregate, views=views)

    def alignment(self, context: BuildContext) -> Pass:
        """Return the pass that moves the body towards the client's prototypes."""
        network = context.network

        def begin_alignment(server: Tree, client: Tree) -> Tree:
            client_state = {key: client[key] for key in (PROTOTYPES, "params", ROUNDS)}
            return {
                "params": server["params"],
                "buffers": server["buffers"],
                "client_state": client_state,
            }

        def misalignment(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            params = {**work["client_state"]["params"], **work["params"]}
            output = network.train(params, work["buffers"], batch["x"], key=batch.get("key"))
            targets = work["client_state"][PROTOTYPES][batch["y"]]
            distances = (output.features.flatten(1) - targets).square().mean(1)
            # Before its first training a client has no body of its own.
            value = weighted_mean(distances, batch) * (work["client_state"][ROUNDS] > 0)
            return value, {"buffers": output.buffers}

        def align(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
            params = trees.apply(lambda w, g: w - self.align_lr * g, work["params"], grads)
            return {**work, "params": params, "buffers": aux["buffers"]}

        def end_alignment(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
            state = {key: leaf for key, leaf in client.items() if key != PROTOTYPES}
            return {**state, "aligned": work["params"]}, {}

        sampling = Sampling(epochs=self.align_epochs)
        return Pass(begin_alignment, misalignment, align, end_alignment, sampling)


def fisher_sweep(context: BuildContext) -> Sweep:
    """Return a sweep that gives an upload the weight of the trained model's Fisher information.

    It is the trace, the mean over training samples of ||grad of a sample's loss||^2.
    """
    network = context.network

    def information(server: Tree, client: Tree, upload: Tree, batch: Batch) -> Tree:
        model = client[TRAINED]

        def loss(params: Tree, x: Inputs, y: Tensor) -> Tensor:
            sample = trees.map_inputs(lambda tensor: tensor[None], x)
            output = network.eval(params, model["buffers"], sample, nested=True)
            single_batch = {"y": y[None], "weight": torch.ones_like(batch["weight"][:1])}
            return context.task.loss(output.outputs, single_batch)

        slopes = vmap(grad(loss), (None, 0, 0))(dict(model["params"]), batch["x"], batch["y"])
        squares = [g.flatten(1).square().sum(1) for g in trees.leaves(slopes)]
        weight = batch["weight"].to(squares[0].dtype)
        return {"trace": weight @ torch.stack(squares).sum(0), "count": weight.sum()}

    def send_weighted(server: Tree, client: Tree, upload: Tree, totals: Tree) -> tuple[Tree, Tree]:
        trace = totals["trace"] / totals["count"].clamp(min=1)
        trace = trace.clamp(min=torch.finfo(trace.dtype).tiny)
        samples = client[COUNTS].sum()
        return dict(client), weighted_upload(upload, trace, samples, context.training)

    return Sweep(information, send_weighted)


def reweighted_average(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
    """Average the uploads of `fl.blocks.reweighting.weighted_upload`."""
    return {**server, **reweighted_mean(trees.mean(uploads, n))}, dict(clients)
