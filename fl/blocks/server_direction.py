"""Local steps along a blend of the client's gradient and the last move of the server."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fl.api import BuildContext, Method, Rate, Tree, WeightedAverage, single_pass, trees
from fl.blocks.path_length import start_path, step_path


def with_server_direction(
    base: Method, context: BuildContext, alpha: float, eta_g: float
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

    def init(variables: Tree) -> tuple[Tree, Tree]:
        server, client = base.init(variables)
        return {**server, "direction": trees.zeros_like(variables["params"])}, client

    def begin(server: Tree, client: Tree) -> Tree:
        return start_path(local.begin(server, client))

    def update(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
        blended = trees.apply(lambda g, d: alpha * g + (1 - alpha) * d, grads, server["direction"])
        return step_path(local.update(server, work, blended, aux, lr), momentum, lr)

    def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
        client_state, upload = local.end(server, client, work)
        return client_state, {**upload, "path": work["path"]}

    def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
        mean = trees.mean(uploads, n)
        path = mean["path"]
        model = {key: leaf for key, leaf in mean.items() if key != "path"}
        moved = trees.apply(lambda w, m: w - m, server["params"], mean["params"])
        # Without a step nothing has moved.
        divisor = path + (path == 0)
        direction = trees.apply(lambda d: d / divisor.to(d.dtype), moved)
        params = trees.apply(lambda w, d: w - eta_g * d, server["params"], moved)
        return {**server, **model, "params": params, "direction": direction}, dict(clients)

    step = replace(local, begin=begin, update=update, end=end)
    return replace(base, init=init, passes=(step,), aggregate=WeightedAverage(aggregate))
