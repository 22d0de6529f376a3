"""Local steps along a blend of the client's gradient and the last move of the server."""

from __future__ import annotations

from dataclasses import replace

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
    local, momentum = single_pass(base), context.training.momentum

    def init(variables: Variables) -> tuple[DirectionServer, RecipeClient]:
        server, client = base.init(variables)
        return {**server, "direction": trees.zeros_like(variables["params"])}, client

    def begin(server: DirectionServer, client: RecipeClient) -> PathWork:
        return start_path(local.begin(server, client))

    def update(
        server: DirectionServer, work: PathWork, grads: Tree, aux: StepResults, lr: Rate
    ) -> PathWork:
        blended = trees.apply(lambda g, d: alpha * g + (1 - alpha) * d, grads, server["direction"])
        work = {**work, **local.update(server, work, blended, aux, lr)}
        return step_path(work, momentum, lr)

    def end(
        server: DirectionServer, client: RecipeClient, work: PathWork
    ) -> tuple[RecipeClient, PathUpload]:
        client, upload = local.end(server, client, work)
        return client, {**upload, "path": work["path"]}

    def aggregate(
        server: DirectionServer, clients: RecipeClient, uploads: PathUpload, n: Tensor
    ) -> tuple[DirectionServer, RecipeClient]:
        mean = trees.mean(uploads, n)
        path = mean["path"]
        moved = trees.apply(lambda w, m: w - m, server["params"], mean["params"])
        # Without a step nothing has moved.
        divisor = path + (path == 0)
        direction = trees.apply(lambda d: d / divisor.to(d.dtype), moved)
        params = trees.apply(lambda w, d: w - eta_g * d, server["params"], moved)
        return {
            **server,
            "params": params,
            "buffers": mean["buffers"],
            "direction": direction,
        }, clients

    step = replace(local, begin=begin, update=update, end=end)
    return replace(base, init=init, passes=(step,), aggregate=WeightedAverage(aggregate))
