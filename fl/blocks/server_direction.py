"""Local steps along a blend of the client's gradient and the last move of the server."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from fl.api import (
    BuildContext,
    Method,
    Rate,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    StepResults,
    Tree,
    Variables,
    WeightedAverage,
    Weights,
    single_pass,
    trees,
)
from fl.blocks.path_length import PathWork, start_path, step_path


class DirectionServer(RecipeServer):
    """State of the server.

    Attributes:
        direction: D, of the names and shapes of all parameters.
    """

    direction: Weights


class PathUpload(RecipeUpload):
    """Upload of a client.

    Attributes:
        path: Length of its path, [].
    """

    path: Tensor


def with_server_direction(
    base: Recipe, context: BuildContext, alpha: float, eta_g: float
) -> Method:
    """Return a method of one pass whose clients step along alpha g + (1 - alpha) D.

    D is the mean move of the last round's clients, divided by the mean length of their paths, which
    is the number of steps times the rate for plain SGD at a constant rate. It is 0 in round 1.

    Args:
        base: The method; its server averages.
        context: The context in which it was built.
        alpha: Weight of the client's own gradient.
        eta_g: Learning rate of the server.
    """
    steps = DirectionSteps(base, context.training.momentum, alpha, eta_g)
    step = replace(single_pass(base), begin=steps.begin, update=steps.update, end=steps.end)
    aggregate = WeightedAverage(steps.aggregate)
    return replace(base, init=steps.init, passes=(step,), aggregate=aggregate)


@dataclass(frozen=True, eq=False)
class DirectionSteps:
    """Functions of the method that `with_server_direction` returns.

    Attributes:
        base: The method.
        momentum: Momentum of the clients.
        alpha: Weight of the client's own gradient.
        eta_g: Learning rate of the server.
    """

    base: Recipe
    momentum: float
    alpha: float
    eta_g: float

    def init(self, variables: Variables) -> tuple[DirectionServer, RecipeClient]:
        """Return states in which D is 0."""
        server, client = self.base.init(variables)
        return {**server, "direction": trees.zeros_like(variables["params"])}, client

    def begin(self, server: DirectionServer, client: RecipeClient) -> PathWork:
        """Begin training at the start of its path."""
        return start_path(single_pass(self.base).begin(server, client))

    def update(
        self, server: DirectionServer, work: PathWork, grads: Tree, aux: StepResults, lr: Rate
    ) -> PathWork:
        """Take a step along alpha g + (1 - alpha) D."""
        blended = trees.apply(
            lambda g, d: self.alpha * g + (1 - self.alpha) * d, grads, server["direction"]
        )
        work = {**work, **single_pass(self.base).update(server, work, blended, aux, lr)}
        return step_path(work, self.momentum, lr)

    def end(
        self, server: DirectionServer, client: RecipeClient, work: PathWork
    ) -> tuple[RecipeClient, PathUpload]:
        """Upload the length of the path."""
        client, upload = single_pass(self.base).end(server, client, work)
        return client, {**upload, "path": work["path"]}

    def aggregate(
        self, server: DirectionServer, clients: RecipeClient, uploads: PathUpload, n: Tensor
    ) -> tuple[DirectionServer, RecipeClient]:
        """Return D, the mean move divided by the mean path, and w - eta_g times the move."""
        mean = trees.mean(uploads, n)
        path = mean["path"]
        moved = trees.apply(lambda w, m: w - m, server["params"], mean["params"])
        # Without a step nothing has moved.
        divisor = path + (path == 0)
        direction = trees.apply(lambda d: d / divisor.to(d.dtype), moved)
        params = trees.apply(lambda w, d: w - self.eta_g * d, server["params"], moved)
        return {
            **server,
            "params": params,
            "buffers": mean["buffers"],
            "direction": direction,
        }, clients
