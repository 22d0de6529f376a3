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
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    StepResults,
    Tree,
    WeightedAverage,
    consumes_gradients,
    declare,
    recipe,
    single_pass,
    task_loss,
    trees,
)
from fl.blocks.path_length import PathWork, check_sgd, path_divisor, start_path, step_path
from fl.blocks.proximal import ProximalTerm


class FedNovaUpload(RecipeUpload):
    """Upload of a client; ``params`` has w - w_k divided by the path.

    Attributes:
        path: Length of the client's path, [].
    """

    path: Tensor


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
        base = recipe(context, terms=(task_loss, *([ProximalTerm(self.mu)] if self.mu else [])))
        local, momentum = single_pass(base), context.training.momentum

        def begin(server: RecipeServer, client: RecipeClient) -> PathWork:
            return start_path(local.begin(server, client))

        @consumes_gradients
        def update(
            server: RecipeServer, work: PathWork, grads: Tree, aux: StepResults, lr: Rate
        ) -> PathWork:
            work = {**work, **local.update(server, work, grads, aux, lr)}
            return step_path(work, momentum, lr, self.mu)

        def end(
            server: RecipeServer, client: RecipeClient, work: PathWork
        ) -> tuple[RecipeClient, FedNovaUpload]:
            client, upload = local.end(server, client, work)
            moved = trees.apply(torch.sub, server["params"], upload["params"])
            direction = trees.apply(lambda d: d / path_divisor(work), moved)
            return client, {**upload, "params": direction, "path": work["path"]}

        step = replace(local, begin=begin, update=update, end=end)
        return replace(base, passes=(step,), aggregate=WeightedAverage(aggregate))


def aggregate(
    server: RecipeServer, clients: RecipeClient, uploads: FedNovaUpload, n: Tensor
) -> tuple[RecipeServer, RecipeClient]:
    """Return w - tau_eff sum_k p_k (w - w_k) / tau_k."""
    mean = trees.mean(uploads, n)
    params = trees.apply(
        lambda w, d: w - mean["path"].to(w.dtype) * d, server["params"], mean["params"]
    )
    return {**server, "params": params, "buffers": mean["buffers"]}, clients
