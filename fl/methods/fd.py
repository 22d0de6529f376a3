"""FD: clients exchange mean outputs by class, and learn from the others' for each sample.

Jeong, Oh, Kim, Park, Bennis, Kim. Communication-Efficient On-Device Machine Learning: Federated
Distillation and Augmentation under Non-IID Private Data. 2018. arXiv:1811.11479.

Family: distillation. Exchanged: mean outputs by class. Local: model. Key: `gamma`.

The outputs are probabilities of the model just trained, in evaluation mode. The server sends their
sum over the clients of the last round; a client takes its own from it, so that a class has no
target if no other client held it. (The paper gathers outputs while it trains.) PFLlib and HtFLlib
send logits, use them as targets of a cross-entropy, which has no lower bound then, and leave the
client's own in the mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    Forward,
    Method,
    NonNegative,
    Output,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeWork,
    Sweep,
    Tree,
    Variables,
    all_weights,
    cross_entropy,
    declare,
    recipe,
    single_pass,
    trees,
    weighted_mean,
)
from fl.blocks.anchor_exchange import class_means_sweep, keep_trained_model
from fl.blocks.anchors import Anchors


class Probabilities(TypedDict):
    """Mean outputs by class that one client sends, or their sum over clients.

    Attributes:
        sum: Mean probabilities of the samples of each class, [C, C]; zeros without a sample.
        count: 1 for a class with samples, else 0, [C].
    """

    sum: Tensor
    count: Tensor


class RoundProbabilities(Probabilities):
    """Sum over the clients of a round, and the round.

    Attributes:
        round: Number of the round, [].
    """

    round: Tensor


class FDServer(RecipeServer):
    """State of the server.

    Attributes:
        others: Sums over the clients of the last round.
    """

    others: RoundProbabilities


class FDClient(RecipeClient):
    """State of a client.

    Attributes:
        own_outputs: What it uploaded last.
    """

    own_outputs: RoundProbabilities


class FDWork(RecipeWork):
    """State of a client's pass.

    Attributes:
        targets: Mean probabilities of the other clients by class, [C, C].
    """

    targets: Tensor


class FDUpload(TypedDict):
    """Upload of a client.

    Attributes:
        anchors: Its mean outputs by class.
    """

    anchors: Probabilities


@declare("personal", title="FD")
class FD:
    """Local with distillation of the other clients' mean outputs.

    Attributes:
        gamma: Weight of the distillation; 0 is Local.
    """

    gamma: NonNegative = 1.0

    def build(self, context: BuildContext) -> Method:
        """Return Local with one more term, whose clients upload mean probabilities by class."""
        base = recipe(context, terms=(cross_entropy, self.distillation), local=all_weights)
        sweep = class_means_sweep(context, probabilities)
        steps = FDSteps(base, sweep, context.classes)
        passes = (
            keep_trained_model(replace(single_pass(base), begin=steps.begin)),
            replace(sweep, end=steps.keep_upload),
        )
        return replace(base, init=steps.init, passes=passes, aggregate=aggregate)

    def distillation(self, forward: Forward) -> Tensor:
        """Gamma CE(z, t_y), with t_y the others' mean probabilities for the label; 0 without."""
        work: FDWork = forward.work
        batch_targets = work["targets"][forward.batch["y"]]
        values = -(batch_targets * forward.output.outputs.log_softmax(-1)).sum(-1)
        return self.gamma * weighted_mean(values, forward.batch)


@dataclass(frozen=True, eq=False)
class FDSteps:
    """Functions of FD's pass and sweep, and what the server does.

    Attributes:
        base: Local with one more term.
        sweep: The sweep for mean probabilities by class.
        classes: Number of classes.
    """

    base: Recipe
    sweep: Sweep
    classes: int

    def init(self, variables: Variables) -> tuple[FDServer, FDClient]:
        """Return Local's states; nobody has sent anything."""
        server, client = self.base.init(variables)
        leaf = trees.leaves(variables["params"])[0]
        zero = leaf.new_zeros(())
        sums: RoundProbabilities = {
            "sum": leaf.new_zeros((self.classes, self.classes)),
            "count": leaf.new_zeros(self.classes),
            "round": zero,
        }
        last_upload: RoundProbabilities = {**sums, "round": zero - 1}
        return {**server, "others": sums}, {**client, "own_outputs": last_upload}

    def begin(self, server: FDServer, client: FDClient) -> FDWork:
        """Begin training, with the others' mean probabilities."""
        return {
            **single_pass(self.base).begin(server, client),
            "targets": targets(server["others"], client["own_outputs"]),
        }

    def keep_upload(
        self, server: FDServer, client: FDClient, upload: Tree, totals: Tree
    ) -> tuple[FDClient, FDUpload]:
        """Upload the client's mean probabilities, and keep them."""
        client, upload = self.sweep.end(server, client, upload, totals)
        anchors: Anchors = upload["anchors"]
        has_class = (anchors["counts"] > 0).to(anchors["means"].dtype)
        class_means: Probabilities = {"sum": anchors["means"], "count": has_class}
        last_upload: RoundProbabilities = {
            **class_means,
            "round": server["others"]["round"] + 1,
        }
        return {**client, "own_outputs": last_upload}, {"anchors": class_means}


def probabilities(output: Output) -> Tensor:
    """Return the probabilities of the classes, [b, C]."""
    return output.outputs.softmax(-1)


def aggregate(
    server: FDServer, clients: FDClient, uploads: FDUpload, n: Tensor
) -> tuple[FDServer, FDClient]:
    """Sum up the mean probabilities of the round."""
    sums = trees.apply(lambda leaf: leaf.sum(0), uploads["anchors"])
    number = server["others"]["round"] + 1
    return {**server, "others": {**sums, "round": number}}, clients


def targets(sums: RoundProbabilities, last_upload: RoundProbabilities) -> Tensor:
    """Return the mean probabilities of the other clients by class, [C, C]; 0 for a class without.

    Args:
        sums: Sum of probabilities [C, C] and number of clients [C] of the last round.
        last_upload: The client's summand, and the round in which it was sent.
    """
    took_part = (last_upload["round"] == sums["round"]).to(sums["sum"].dtype)
    count = sums["count"] - took_part * last_upload["count"]
    total = sums["sum"] - took_part * last_upload["sum"]
    return torch.where(count > 0.5, 1 / count.clamp(min=1), 0)[:, None] * total
