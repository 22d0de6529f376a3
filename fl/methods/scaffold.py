"""SCAFFOLD: control variates on both sides correct the drift of local steps.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning. ICML 2020. arXiv:1910.06378.

Control variates follow option II of algorithm 1. K eta is replaced by the sum of the weights that
the gradients of a round have in what the client moved. For plain SGD at a constant rate that is K
eta. With momentum it is still right, where K eta is too small by up to 1 / (1 - momentum).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    MeanBased,
    Method,
    Positive,
    Rate,
    Tree,
    declare,
    recipe,
    single_pass,
    trees,
)
from fl.blocks.path_length import check_sgd, path_divisor, start_path, step_path


@declare("global", title="SCAFFOLD", tasks="any")
class Scaffold:
    """FedAvg with control variates.

    Attributes:
        eta_g: The server's learning rate.
        divisor: Divisor of a client's change: the length of its `path`, or K eta, its `steps` times
            the rate (code of MOON and FedFM, whose steps have momentum .9).
    """

    eta_g: Positive = 1.0
    divisor: Literal["path", "steps"] = "path"

    def build(self, context: BuildContext) -> Method:
        """FedAvg on gradients g + c - c_k; the server's tree has c, the client's c_k."""
        check_sgd(context, "scaffold")
        base = recipe(context)
        # Without momentum a path is as long as its steps times the rate.
        momentum = context.training.momentum if self.divisor == "path" else 0.0
        local = single_pass(base)

        def init(variables: Tree) -> tuple[Tree, Tree]:
            server, client = base.init(variables)
            zeros = trees.zeros_like(variables["params"])
            return {**server, "control": zeros}, {**client, "control": zeros}

        def begin(server: Tree, client: Tree) -> Tree:
            return {**start_path(local.begin(server, client)), "control": client["control"]}

        def update(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
            corrected = trees.apply(
                lambda g, c, c_k: g + c - c_k, grads, server["control"], work["control"]
            )
            return step_path(local.update(server, work, corrected, aux, lr), momentum, lr)

        def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
            client, upload = local.end(server, client, work)
            control = trees.apply(
                lambda c_k, c, x, y: c_k - c + (x - y) / path_divisor(work),
                client["control"],
                server["control"],
                server["params"],
                upload["params"],
            )
            change = trees.apply(torch.sub, control, client["control"])
            return {**client, "control": control}, {**upload, "control": change}

        def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
            mean = trees.mean(uploads, torch.ones_like(n))
            params = trees.apply(
                lambda x, y: x + self.eta_g * (y - x), server["params"], mean["params"]
            )
            control = trees.apply(
                lambda c, d: c + len(n) / context.participants * d,
                server["control"],
                mean["control"],
            )
            return {**server, **mean, "params": params, "control": control}, dict(clients)

        step = replace(local, begin=begin, update=update, end=end)
        return Method(init, (step,), MeanBased(aggregate), base.views)
