"""Control variates on both sides: steps along g + c - c_k, as in SCAFFOLD."""

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
    StepResults,
    Tree,
    Variables,
    Weights,
    consumes_gradients,
    single_pass,
    trees,
)
from fl.blocks.path_length import PathWork, path_divisor, start_path, step_path


class ControlServer(RecipeServer):
    """State of the server.

    Attributes:
        control: Control variate c, of the names and shapes of all parameters.
    """

    control: Weights


class ControlClient(RecipeClient):
    """State of a client.

    Attributes:
        control: Control variate c_k, as c of `ControlServer`.
    """

    control: Weights


class ControlWork(PathWork):
    """State of a client's pass.

    Attributes:
        control: Control variate c_k, as in `ControlClient`.
    """

    control: Weights


class ControlUpload(RecipeUpload):
    """Upload of a client.

    Attributes:
        control: Change of c_k in the round.
    """

    control: Weights


def with_control_variates(
    base: Recipe, context: BuildContext, eta_g: float, momentum: float
) -> Method:
    """Return a method of one pass whose steps are corrected by control variates.

    They follow option II of SCAFFOLD's algorithm 1: c_k <- c_k - c + (w - w_k) / path, where the
    path is the sum of the weights of the round's gradients in what the client moved.

    Args:
        base: The method; its server averages.
        context: The context in which it was built.
        eta_g: Learning rate of the server, which counts clients alike.
        momentum: Momentum by which the path grows; 0 makes it steps times the rate.
    """
    steps = ControlSteps(base, context, eta_g, momentum)
    step = replace(single_pass(base), begin=steps.begin, update=steps.update, end=steps.end)
    return Method(steps.init, (step,), MeanBased(steps.aggregate), base.views)


@dataclass(frozen=True, eq=False)
class ControlSteps:
    """Functions of the method that `with_control_variates` returns.

    Attributes:
        base: The method.
        context: The context in which the method is built.
        eta_g: Learning rate of the server.
        momentum: Momentum by which the path grows.
    """

    base: Recipe
    context: BuildContext
    eta_g: float
    momentum: float

    def init(self, variables: Variables) -> tuple[ControlServer, ControlClient]:
        """Return states in which all control variates are 0."""
        server, client = self.base.init(variables)
        zeros = trees.zeros_like(variables["params"])
        return {**server, "control": zeros}, {**client, "control": zeros}

    def begin(self, server: ControlServer, client: ControlClient) -> ControlWork:
        """Begin training, with c_k."""
        return {
            **start_path(single_pass(self.base).begin(server, client)),
            "control": client["control"],
        }

    @consumes_gradients
    def update(
        self, server: ControlServer, work: ControlWork, grads: Tree, aux: StepResults, lr: Rate
    ) -> ControlWork:
        """Take a step along g + c - c_k."""
        corrected = trees.add(trees.add(grads, server["control"]), work["control"], -1)
        work = {**work, **single_pass(self.base).update(server, work, corrected, aux, lr)}
        return {**work, **step_path(work, self.momentum, lr)}

    def end(
        self, server: ControlServer, client: ControlClient, work: ControlWork
    ) -> tuple[ControlClient, ControlUpload]:
        """Renew c_k, and upload its change."""
        client, upload = single_pass(self.base).end(server, client, work)
        control = trees.apply(
            lambda c_k, c, x, y: c_k - c + (x - y) / path_divisor(work),
            client["control"],
            server["control"],
            server["params"],
            upload["params"],
        )
        change = trees.apply(torch.sub, control, client["control"])
        return {**client, "control": control}, {**upload, "control": change}

    def aggregate(
        self, server: ControlServer, clients: ControlClient, uploads: ControlUpload, n: Tensor
    ) -> tuple[ControlServer, ControlClient]:
        """Return x + eta_g mean (y_k - x), and c + K/N mean of the changes."""
        mean = trees.mean(uploads, torch.ones_like(n))
        params = trees.apply(
            lambda x, y: x + self.eta_g * (y - x), server["params"], mean["params"]
        )
        control = trees.apply(
            lambda c, d: c + len(n) / self.context.participants * d,
            server["control"],
            mean["control"],
        )
        return {**server, **mean, "params": params, "control": control}, clients
