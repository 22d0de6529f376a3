"""FedExP: the server goes farther than the mean of the uploads, by how much these differ.

Jhunjhunwala, Wang, Joshi. FedExP: Speeding Up Federated Averaging via Extrapolation. ICLR 2023.
arXiv:2301.09604.

Family: aggregation. Exchanged: model. Local: nothing. Key: `epsilon`.

Clients are weighted as in FedAvg; with equal weights the formula is the paper's. The authors' code
(Divyansh03/FedExP, 34b05a26) multiplies epsilon by the number of participants. Running statistics
are averaged and not extrapolated.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    Method,
    NonNegative,
    Tree,
    WeightedAverage,
    declare,
    recipe,
    shared,
    single_pass,
    trees,
)
from fl.blocks.exchange import send_all_but


@declare("global", title="FedExP", tasks="any")
class FedExP:
    """FedAvg with an adaptive rate of the server.

    Attributes:
        epsilon: Number that is added to the squared length of the mean update (the authors: .001 or
            .1, by data set).
        scored: Evaluated model: the `mean` of the last two models of the server, as in the paper,
            or the `last` one.
    """

    epsilon: NonNegative = 1e-3
    scored: Literal["mean", "last"] = "mean"

    def build(self, context: BuildContext) -> Method:
        """Eta = max(1, mean_k ||D_k||^2 / (2 (||mean_k D_k||^2 + epsilon))), equation 6."""
        base = recipe(context)
        local = single_pass(base)

        def init(variables: Tree) -> tuple[Tree, Tree]:
            server, client = base.init(variables)
            return {**server, "previous": variables["params"]}, client

        def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
            client_state, upload = local.end(server, client, work)
            squared = trees.squared_distance(upload["params"], server["params"])
            return client_state, {**upload, "squared_length": squared}

        def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
            mean = {**trees.mean(uploads, n)}
            squared = mean.pop("squared_length")
            moved = trees.squared_distance(mean["params"], server["params"])
            eta = (squared / (2 * (moved + self.epsilon))).nan_to_num(1.0).clamp(min=1)
            params = trees.apply(lambda w, m: w + eta * (m - w), server["params"], mean["params"])
            return {**server, **mean, "params": params, "previous": server["params"]}, dict(clients)

        def mean_model(server: Tree, client: Tree | None) -> Tree:
            model = shared(server, None)
            params = trees.apply(torch.add, model["params"], server["previous"])
            return {**model, "params": trees.apply(lambda total: total / 2, params)}

        return replace(
            base,
            init=init,
            passes=(replace(local, end=end),),
            aggregate=WeightedAverage(aggregate),
            views={"global": mean_model if self.scored == "mean" else shared},
            send=send_all_but("previous"),
        )
