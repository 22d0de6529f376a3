"""FedDG-GA: clients that the shared model serves worse than their own trained one weigh more.

Zhang, Xu, Yao, Zhang, Tian, Wang. Federated Domain Generalization with Generalization Adjustment.
CVPR 2023.

Family: aggregation. Exchanged: model, loss. Local: nothing. Key: `step`.

A client's gap is its loss of the shared model minus that of the model that it trained in the round
before. It sends the gap with its next upload, so that the weights of a round follow from the gaps
of the round before, as in the paper. There, all clients take part in every round; here, only
weights of participants that took part before move. Losses are over all training samples, in
evaluation mode. Running statistics are averaged with the same weights.

The authors' code (MediaBrain-SJTU/FedDG-GA, 8d03a24) takes accuracies of validation samples, whose
gaps it divides by the largest without taking their mean away; its step is a third as long.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

import torch
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    Method,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    Share,
    Sweep,
    Tree,
    Variables,
    declare,
    recipe,
    shared_model,
    trees,
)
from fl.blocks.exchange import send_all_but
from fl.blocks.participation import with_participation


class FedDGGAServer(RecipeServer):
    """State of the server; what it adds stays on the server.

    Attributes:
        weights: Weight a_k of every client, [clients].
        round: Number of finished rounds, [].
    """

    weights: Tensor
    round: Tensor


TrainedLoss = TypedDict("TrainedLoss", {"trained loss": Tensor})
"""The loss of the model that a client trained last, []."""


class FedDGGAClient(RecipeClient, TrainedLoss):
    """State of a client."""


class FedDGGAUpload(RecipeUpload):
    """Upload of a client.

    Attributes:
        gap: Its generalization gap G_k, the loss of the sent model less `TrainedLoss`, [].
        has_gap: Whether it has one, bool [].
    """

    gap: Tensor
    has_gap: Tensor


@declare("global", title="FedDG-GA", tasks="any")
class FedDGGA:
    """FedAvg with weights that follow the clients' generalization gaps.

    Attributes:
        step: Largest change d of a weight after the first round, which falls to 0 over the rounds;
            0 is FedAvg over clients that count alike.
    """

    step: Share = 0.2

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg with weights a_k + d_t (G_k - mean G) / max |G - mean G|, algorithm 1."""
        base = with_participation(recipe(context))
        steps = FedDGGASteps(self, base, context)
        return replace(
            base,
            init=steps.init,
            passes=(*base.passes, Sweep(steps.look, steps.end)),
            aggregate=steps.aggregate,
            send=send_all_but("weights", "round"),
            trace=lambda server: {"weights": server["weights"]},
        )


@dataclass(frozen=True, eq=False)
class FedDGGASteps:
    """Functions of FedDG-GA's sweep, and what the server does.

    Attributes:
        options: The keys of the method.
        base: FedAvg whose clients count their rounds.
        context: The context in which the method is built.
    """

    options: FedDGGA
    base: Recipe
    context: BuildContext

    def init(self, variables: Variables) -> tuple[FedDGGAServer, FedDGGAClient]:
        """Return FedAvg's states; all clients have the same weight."""
        server, client = self.base.init(variables)
        leaf = trees.leaves(variables["params"])[0]
        weights = leaf.new_full((self.context.clients,), 1 / self.context.participants)
        zero = leaf.new_zeros(())
        return {**server, "weights": weights, "round": zero}, {**client, "trained loss": zero}

    def look(
        self, server: FedDGGAServer, client: FedDGGAClient, upload: RecipeUpload, batch: Batch
    ) -> Tree:
        """Return the losses of the sent and of the trained model, summed over a batch."""
        count = batch["weight"].sum()

        def summed_loss(model: Variables) -> Tensor:
            output = self.context.network.eval(model["params"], model["buffers"], batch["x"])
            return self.context.task.loss(output.outputs, batch) * count

        return {"sent": summed_loss(server), "trained": summed_loss(upload), "count": count}

    def end(
        self, server: FedDGGAServer, client: FedDGGAClient, upload: RecipeUpload, totals: Tree
    ) -> tuple[FedDGGAClient, FedDGGAUpload]:
        """Upload the gap: the loss of the sent model minus that of the client's last one."""
        count = totals["count"].clamp(min=1)
        gap = totals["sent"] / count - client["trained loss"]
        has_gap = (client["rounds"] > 1) & (totals["count"] > 0)
        client = {**client, "trained loss": totals["trained"] / count}
        return client, {**upload, "gap": gap, "has_gap": has_gap}

    def aggregate(
        self, server: FedDGGAServer, clients: FedDGGAClient, uploads: FedDGGAUpload, n: Tensor
    ) -> tuple[FedDGGAServer, FedDGGAClient]:
        """Move the weights by the gaps, and average the models by them."""
        models = shared_model(uploads, None)
        ids = clients["id"]
        step = self.options.step * (1 - (server["round"] - 1) / self.context.training.rounds)
        moves = step * centred_gaps(uploads["gap"], uploads["has_gap"])
        moved_weights = server["weights"].index_add(0, ids, moves).clamp(min=0)
        weights = moved_weights / moved_weights.sum()
        shares = weights.index_select(0, ids) * (n > 0)
        # If all of the participants have fallen to 0, they count alike.
        shares = torch.where(shares.sum() > 0, shares, (n > 0).to(shares.dtype))
        next_server, clients = self.base.aggregate(server, clients, models, shares)
        next_round = server["round"] + 1
        return {**next_server, "weights": weights, "round": next_round}, clients


def centred_gaps(gaps: Tensor, is_known: Tensor) -> Tensor:
    """Return (G - mean G) / max |G - mean G| of a round's gaps, [K]; 0 for unknown or equal ones.

    Args:
        gaps: Gaps G of the participants, [K].
        is_known: Whether each has a gap, [K].
    """
    mean = torch.where(is_known, gaps, 0).sum() / is_known.sum().clamp(min=1)
    centred = torch.where(is_known, gaps - mean, 0)
    largest = centred.abs().amax()
    return centred / torch.where(largest > 0, largest, 1)
