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
from typing import Literal, NotRequired, TypedDict

import torch
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    Count,
    Method,
    NonNegative,
    Pass,
    Rate,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    Sampling,
    StepResults,
    Sweep,
    Tree,
    WeightedAverage,
    Weights,
    consumes_gradients,
    declare,
    personal_model,
    recipe,
    sgd,
    single_pass,
    trees,
    weighted_mean,
    weights_in,
)
from fl.blocks.anchors import means_from_sums, sums_by_class
from fl.blocks.participation import with_participation
from fl.blocks.reweighting import reweighted_mean, weighted_upload
from fl.blocks.trained_view import TrainedModel, with_trained_view


class FedASClient(RecipeClient, TrainedModel):
    """State of a client.

    Attributes:
        prototypes: Mean feature of each class by the body that it trained last, [C, d]; from the
            beginning of a round to its alignment.
        aligned: Parameters of the body after its alignment, by name; until it trains.
    """

    prototypes: NotRequired[Tensor]
    aligned: NotRequired[Weights]


class AlignedClient(TypedDict):
    """The part of a client's state that its alignment needs, see `FedASClient`.

    Attributes:
        prototypes: As there.
        params: Parameters of its head, by name.
        rounds: Number of rounds in which it took part, [].
    """

    prototypes: Tensor
    params: Weights
    rounds: Tensor


class AlignmentWork(TypedDict):
    """State of the pass that aligns the body.

    Attributes:
        params: Parameters of the body, by name.
        buffers: Buffers by name.
        client_state: What it needs of the client.
    """

    params: Weights
    buffers: Weights
    client_state: AlignedClient


class Information(TypedDict):
    """Sums of the samples' squared gradients.

    Attributes:
        trace: Sum of ||grad of a sample's loss||^2, [].
        count: Number of samples, [].
    """

    trace: Tensor
    count: Tensor


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

        def look(server: RecipeServer, client: FedASClient, upload: Tree, batch: Batch) -> Tree:
            return sums_by_class(context.network, client["trained"], batch, context.classes)

        def begin(server: RecipeServer, client: FedASClient) -> RecipeWork:
            return local.begin({**server, "params": client["aligned"]}, client)

        def end(
            server: RecipeServer, client: FedASClient, work: RecipeWork
        ) -> tuple[FedASClient, RecipeUpload]:
            client, upload = local.end(server, client, work)
            return drop_entry(client, "aligned"), upload

        passes = (
            Sweep(look, keep_prototypes),
            self.alignment(context),
            replace(local, begin=begin, end=end),
            fisher_sweep(context),
        )
        views = base.views if self.scored == "trained" else {"personal": personal_model}
        aggregate = WeightedAverage(reweighted_average)
        return replace(base, passes=passes, aggregate=aggregate, views=views)

    def alignment(self, context: BuildContext) -> Pass:
        """Return the pass that moves the body towards the client's prototypes."""
        network = context.network

        def misalignment(
            server: RecipeServer, work: AlignmentWork, batch: Batch
        ) -> tuple[Tensor, Tree]:
            params = {**work["client_state"]["params"], **work["params"]}
            output = network.train(params, work["buffers"], batch["x"], key=batch.get("key"))
            targets = work["client_state"]["prototypes"][batch["y"]]
            distances = (output.features.flatten(1) - targets).square().mean(1)
            # Before its first training a client has no body of its own.
            value = weighted_mean(distances, batch) * (work["client_state"]["rounds"] > 0)
            return value, {"buffers": output.buffers}

        descent = sgd()

        @consumes_gradients
        def align(
            server: RecipeServer, work: AlignmentWork, grads: Weights, aux: StepResults, lr: Rate
        ) -> AlignmentWork:
            params, _ = descent.step(work["params"], grads, {}, self.align_lr)
            return {**work, "params": params, "buffers": aux["buffers"]}

        sampling = Sampling(epochs=self.align_epochs)
        return Pass(begin_alignment, misalignment, align, end_alignment, sampling)


def begin_alignment(server: RecipeServer, client: FedASClient) -> AlignmentWork:
    """Begin the alignment at the shared body."""
    client_state: AlignedClient = {
        "prototypes": client["prototypes"],
        "params": client["params"],
        "rounds": client["rounds"],
    }
    return {
        "params": server["params"],
        "buffers": server["buffers"],
        "client_state": client_state,
    }


def end_alignment(
    server: RecipeServer, client: FedASClient, work: AlignmentWork
) -> tuple[FedASClient, Tree]:
    """Keep the aligned body, and upload nothing."""
    return {**drop_entry(client, "prototypes"), "aligned": work["params"]}, {}


def keep_prototypes(
    server: RecipeServer, client: FedASClient, upload: Tree, totals: Tree
) -> tuple[FedASClient, Tree]:
    """Keep the mean features by class, the prototypes, for the alignment."""
    class_means, _ = means_from_sums(totals["sums"], totals["counts"])
    return {**client, "prototypes": class_means}, {}


def fisher_sweep(context: BuildContext) -> Sweep:
    """Return a sweep that gives an upload the weight of the trained model's Fisher information.

    It is the trace, the mean over training samples of ||grad of a sample's loss||^2.
    """
    network = context.network

    def information(
        server: RecipeServer, client: FedASClient, upload: RecipeUpload, batch: Batch
    ) -> Information:
        model = client["trained"]

        def loss(outputs: Tensor, y: Tensor) -> Tensor:
            single_batch = {"y": y, "weight": torch.ones_like(batch["weight"][:1])}
            return context.task.loss(outputs, single_batch)

        squares = network.squared_gradients(
            model["params"], model["buffers"], batch["x"], batch["y"], loss
        )
        weight = batch["weight"].to(squares.dtype)
        return {"trace": weight @ squares, "count": weight.sum()}

    def send_weighted(
        server: RecipeServer, client: FedASClient, upload: RecipeUpload, totals: Information
    ) -> tuple[FedASClient, Tree]:
        trace = totals["trace"] / totals["count"].clamp(min=1)
        trace = trace.clamp(min=torch.finfo(trace.dtype).tiny)
        samples = client["counts"].sum()
        return client, weighted_upload(upload, trace, samples, context.training)

    return Sweep(information, send_weighted)


def reweighted_average(
    server: RecipeServer, clients: FedASClient, uploads: Tree, n: Tensor
) -> tuple[RecipeServer, FedASClient]:
    """Average the uploads of `fl.blocks.reweighting.weighted_upload`."""
    mean: RecipeUpload = reweighted_mean(trees.mean(uploads, n))
    return {**server, **mean}, clients


def drop_entry(client: FedASClient, key: Literal["aligned", "prototypes"]) -> FedASClient:
    """Return a client's state without what one step of a round leaves for the next one."""
    state = client.copy()
    del state[key]
    return state
