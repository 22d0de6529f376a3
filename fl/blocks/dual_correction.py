"""Dual variables of local training: each client adds what it has moved so far to its own gradient.

A step goes along g + lam (w - w^t + u_k), where u_k is the sum of the client's moves of all its
rounds. Clients count alike in the server's mean, as their dual variables do; running statistics are
averaged by samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    MeanBased,
    Method,
    Rate,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    StepResults,
    Tree,
    Variables,
    Weights,
    single_pass,
    trees,
)
from fl.blocks.exchange import send_all_but


class DualServer(RecipeServer):
    """State of the server, with ``of_all``.

    Attributes:
        dual: Mean of the dual variables of all clients, by name; it stays on the server.
    """

    dual: Weights


class DualClient(RecipeClient):
    """State of a client.

    Attributes:
        dual: Dual variable u_k, of the names and shapes of all parameters.
    """

    dual: Weights


class DualWork(RecipeWork):
    """State of a client's pass.

    Attributes:
        dual: As in `DualClient`.
    """

    dual: Weights


def with_dual_correction(
    base: Recipe, context: BuildContext, lam: float, of_all: bool = False
) -> Method:
    """Return a method of one pass with dual variables, with lam for the papers' 1/lambda.

    The server's model is the mean over the round's clients of w_k + u_k, with the newest move in
    u_k (FedSpeed); or the mean of w_k, plus the mean of u_k over all clients (FedSMOO, as FedDyn).

    Args:
        base: The method; its server averages.
        context: The context in which it was built.
        lam: Weight of the correction; 0 leaves steps as they are, but not the server's model.
        of_all: Whether the mean of dual variables is over all clients.
    """
    steps = DualSteps(base, context, lam, of_all)
    step = replace(single_pass(base), begin=steps.begin, update=steps.update, end=steps.end)
    send = send_all_but("dual") if of_all else base.send
    aggregate = MeanBased(steps.aggregate)
    return replace(base, init=steps.init, passes=(step,), aggregate=aggregate, send=send)


@dataclass(frozen=True, eq=False)
class DualSteps:
    """Functions of the method that `with_dual_correction` returns.

    Attributes:
        base: The method.
        context: The context in which the method is built.
        lam: Weight of the correction.
        of_all: Whether the mean of dual variables is over all clients.
    """

    base: Recipe
    context: BuildContext
    lam: float
    of_all: bool

    def init(self, variables: Variables) -> tuple[RecipeServer, DualClient]:
        """Return states in which all dual variables are 0."""
        server, client = self.base.init(variables)
        zeros = trees.zeros_like(variables["params"])
        with_dual: DualServer = {**server, "dual": zeros}
        return with_dual if self.of_all else server, {**client, "dual": zeros}

    def begin(self, server: DualServer, client: DualClient) -> DualWork:
        """Begin training, with u_k."""
        return {**single_pass(self.base).begin(server, client), "dual": client["dual"]}

    def update(
        self, server: DualServer, work: DualWork, grads: Tree, aux: StepResults, lr: Rate
    ) -> DualWork:
        """Take a step along g + lam (w - w^t + u_k)."""
        corrected = trees.apply(
            lambda g, w, sent, u: g + self.lam * (w - sent + u),
            grads,
            work["params"],
            server["params"],
            work["dual"],
        )
        return {**work, **single_pass(self.base).update(server, work, corrected, aux, lr)}

    def end(
        self, server: DualServer, client: DualClient, work: DualWork
    ) -> tuple[DualClient, RecipeUpload]:
        """Return u_k + w_k - w^t."""
        previous = client["dual"]
        client, upload = single_pass(self.base).end(server, client, work)
        moved = trees.apply(torch.sub, upload["params"], server["params"])
        dual = trees.apply(torch.add, previous, moved)
        if self.of_all:
            return {**client, "dual": dual}, upload
        params = trees.apply(torch.add, upload["params"], dual)
        return {**client, "dual": dual}, {**upload, "params": params}

    def aggregate(
        self, server: DualServer, clients: DualClient, uploads: RecipeUpload, n: Tensor
    ) -> tuple[RecipeServer, DualClient]:
        """Return the server's model: the mean of w_k and of the dual variables, added."""
        next_server, clients = self.base.aggregate(server, clients, uploads, n)
        params = trees.mean(uploads["params"], torch.ones_like(n))
        if not self.of_all:
            return {**next_server, "params": params}, clients
        share = len(n) / self.context.participants
        dual = trees.apply(
            lambda h, w, sent: h + share * (w - sent), server["dual"], params, server["params"]
        )
        params = trees.apply(torch.add, params, dual)
        with_dual: DualServer = {**next_server, "params": params, "dual": dual}
        return with_dual, clients
