"""FedNova: what clients moved is divided by how far they went before it is averaged.

Wang, Liu, Liang, Joshi, Poor. Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization. NeurIPS 2020. arXiv:2007.07481.

Family: aggregation. Exchanged: model, length of the path. Local: nothing. Key: `mu`.

How far a client went is ||a_k||_1 times the learning rate, for SGD with or without momentum and
proximal term. tau_eff is its mean weighted by samples, so that clients that went equally far are
averaged as by FedAvg or FedProx. This is as in the released code, except for mu > 0: there tau_eff
counts steps, and one formula stands for momentum and the proximal term together. The server has no
momentum.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    Method,
    NonNegative,
    Rate,
    Tree,
    WeightedAverage,
    declare,
    recipe,
    single_pass,
    task_loss,
    trees,
)
from fl.blocks.path_length import check_sgd, path_divisor, start_path, step_path
from fl.blocks.proximal import proximal_term


@declare("global", tasks="any")
class FedNova:
    """FedAvg with updates that are normalised by numbers of steps.

    Attributes:
        mu: Weight of FedProx's term, which the paper combines with FedNova; 0 is none.
    """

    mu: NonNegative = 0.0

    def build(self, context: BuildContext) -> Method:
        """W <- w - tau_eff sum_k p_k (w - w_k) / tau_k, equation 8, tau with the rate in it."""
        check_sgd(context, "fednova")
        base = recipe(context, terms=(task_loss, *([proximal_term(self.mu)] if self.mu else [])))
        local, momentum = single_pass(base), context.training.momentum

        def begin(server: Tree, client: Tree) -> Tree:
            return start_path(local.begin(server, client))

        def update(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
            return step_path(local.update(server, work, grads, aux, lr), momentum, lr, self.mu)

        def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
            client, upload = local.end(server, client, work)
            moved = trees.apply(torch.sub, server["params"], upload["params"])
            direction = trees.apply(lambda d: d / path_divisor(work), moved)
            return client, {**upload, "params": direction, "path": work["path"]}

        def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
            mean = {**trees.mean(uploads, n)}
            path = mean.pop("path")
            params = trees.apply(
                lambda w, d: w - path.to(w.dtype) * d, server["params"], mean["params"]
            )
            return {**server, **mean, "params": params}, dict(clients)

        step = replace(local, begin=begin, update=update, end=end)
        return replace(base, passes=(step,), aggregate=WeightedAverage(aggregate))
