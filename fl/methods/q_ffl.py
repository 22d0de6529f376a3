"""q-FFL: clients with a larger loss move the shared model more, by the algorithm q-FedAvg.

Li, Sanjabi, Beirami, Smith. Fair Resource Allocation in Federated Learning. ICLR 2020.
arXiv:1905.10497.

Family: aggregation. Exchanged: model, loss. Local: nothing. Key: `q`.

F_k is the mean loss of the sent model over all training samples of the client. The constant L is
one over the rate of the round's last step. Clients count alike, as in the paper; running statistics
are averaged by samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    Method,
    NonNegative,
    Rate,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    StepResults,
    Tree,
    WeightedAverage,
    Weights,
    consumes_gradients,
    declare,
    recipe,
    single_pass,
    trees,
)
from fl.blocks.reweighting import unweighted_upload
from fl.blocks.shared_loss import shared_loss_sweep

MIN_LOSS = 1e-10
"""Added to losses, as in the authors' code, so that powers of a loss of 0 are finite."""


class QFFLWork(RecipeWork):
    """State of a client's pass.

    Attributes:
        rate: Learning rate of its last step, []; 0 before the first.
    """

    rate: Tensor


class QFFLUpload(RecipeUpload):
    """Upload of a client.

    Attributes:
        rate: As in `QFFLWork`.
    """

    rate: Tensor


class QFFLMoves(TypedDict):
    """Upload of a client after the sweep that measures its loss F_k.

    Attributes:
        buffers: Buffers by name.
        summed: ``values`` with ``delta``, its Delta_k = F_k^q L (w - w_k) by weight, and ``h``, its
            h_k, []; see `unweighted_upload`.
    """

    buffers: Weights
    summed: Tree


@declare("global", title="q-FFL", tasks=("classification", "regression"))
class QFFL:
    """FedAvg with weights by powers of the loss.

    Attributes:
        q: Power of the losses (the paper: .001 to 5); 0 is FedAvg over clients that count alike.
    """

    q: NonNegative = 1.0

    def build(self, context: BuildContext) -> Method:
        """W <- w - sum_k Delta_k / sum_k h_k, algorithm 2."""
        base = recipe(context)
        steps = QFFLSteps(self.q, base, context)
        step = replace(single_pass(base), begin=steps.begin, update=steps.update, end=steps.end)
        passes = (step, shared_loss_sweep(context, steps.combine))
        return replace(base, passes=passes, aggregate=WeightedAverage(aggregate))


@dataclass(frozen=True, eq=False)
class QFFLSteps:
    """Functions of the pass and the sweep of q-FFL.

    Attributes:
        q: Power of the losses.
        base: FedAvg.
        context: The context in which the method is built.
    """

    q: float
    base: Recipe
    context: BuildContext

    def begin(self, server: RecipeServer, client: RecipeClient) -> QFFLWork:
        """Begin training, before the first step."""
        work = single_pass(self.base).begin(server, client)
        return {**work, "rate": trees.leaves(work["params"])[0].new_zeros(())}

    @consumes_gradients
    def update(
        self, server: RecipeServer, work: QFFLWork, grads: Tree, aux: StepResults, lr: Rate
    ) -> QFFLWork:
        """Take a step, and note its rate."""
        next_work = single_pass(self.base).update(server, work, grads, aux, lr)
        return {**next_work, "rate": 0 * work["rate"] + lr}

    def end(
        self, server: RecipeServer, client: RecipeClient, work: QFFLWork
    ) -> tuple[RecipeClient, QFFLUpload]:
        """Upload the rate of the last step."""
        client, upload = single_pass(self.base).end(server, client, work)
        return client, {**upload, "rate": work["rate"]}

    def combine(
        self, server: RecipeServer, client: RecipeClient, upload: QFFLUpload, loss: Tensor
    ) -> QFFLMoves:
        """Return F^q L (w - w_k) and q F^(q - 1) ||L (w - w_k)||^2 + L F^q, with L = 1 / rate."""
        rate = upload["rate"]
        # A client without a step counts for nothing.
        lipschitz = torch.where(rate > 0, 1 / torch.where(rate > 0, rate, 1), 0)
        gradient = trees.apply(
            lambda w, trained: lipschitz * (w - trained), server["params"], upload["params"]
        )
        loss = loss + MIN_LOSS
        squared = trees.squared_norm(gradient)
        delta = trees.apply(lambda g: loss**self.q * g, gradient)
        h = self.q * loss ** (self.q - 1) * squared + loss**self.q * lipschitz
        summed = unweighted_upload(
            {"delta": delta, "h": h}, client["counts"].sum(), self.context.training
        )
        return {"buffers": upload["buffers"], "summed": summed}


def aggregate(
    server: RecipeServer, clients: RecipeClient, uploads: QFFLMoves, n: Tensor
) -> tuple[RecipeServer, RecipeClient]:
    """Return w - sum_k Delta_k / sum_k h_k."""
    mean = trees.mean(uploads, n)
    # The numbers of clients in both means cancel.
    sums = mean["summed"]["values"]
    h = sums["h"] + (sums["h"] == 0)
    params = trees.apply(lambda w, d: w - d / h, server["params"], sums["delta"])
    return {**server, "params": params, "buffers": mean["buffers"]}, clients
