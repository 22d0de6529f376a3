"""FedCM: every local step goes partly along the direction in which the server moved last.

Xu, Wang, Wang, Yao. FedCM: Federated Learning with Client-level Momentum. 2021. arXiv:2106.10874.

The server's move is divided by the mean length of the clients' paths, which is the number of steps
times the rate for plain SGD at a constant rate, as in the paper, and right for momentum as well.
Clients are weighted as in FedAvg. The direction is 0 in the first round, so that its steps are
alpha times as long as those of FedAvg.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fl.api import (
    BuildContext,
    Method,
    Positive,
    Rate,
    Share,
    Tree,
    WeightedAverage,
    declare,
    recipe,
    single_pass,
    trees,
)
from fl.blocks.path_length import check_sgd, start_path, step_path


@declare("global", title="FedCM", tasks="any")
class FedCM:
    """FedAvg whose clients step along alpha g + (1 - alpha) D.

    Attributes:
        alpha: Weight of the client's own gradient g; 1 is FedAvg.
        eta_g: Learning rate of the server.
    """

    alpha: Share = 0.1
    eta_g: Positive = 1.0

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg with a direction D that the server sends, algorithm 2."""
        check_sgd(context, "fedcm")
        base = recipe(context)
        local, momentum = single_pass(base), context.training.momentum

        def init(variables: Tree) -> tuple[Tree, Tree]:
            server, client = base.init(variables)
            return {**server, "direction": trees.zeros_like(variables["params"])}, client

        def begin(server: Tree, client: Tree) -> Tree:
            return start_path(local.begin(server, client))

        def update(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
            blended = trees.apply(
                lambda g, d: self.alpha * g + (1 - self.alpha) * d, grads, server["direction"]
            )
            return step_path(local.update(server, work, blended, aux, lr), momentum, lr)

        def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
            client_state, upload = local.end(server, client, work)
            return client_state, {**upload, "path": work["path"]}

        def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
            mean = {**trees.mean(uploads, n)}
            path = mean.pop("path")
            moved = trees.apply(lambda w, m: w - m, server["params"], mean["params"])
            # Without a step nothing has moved.
            divisor = path + (path == 0)
            direction = trees.apply(lambda d: d / divisor.to(d.dtype), moved)
            params = trees.apply(lambda w, d: w - self.eta_g * d, server["params"], moved)
            return {**server, **mean, "params": params, "direction": direction}, dict(clients)

        step = replace(local, begin=begin, update=update, end=end)
        return replace(base, init=init, passes=(step,), aggregate=WeightedAverage(aggregate))
