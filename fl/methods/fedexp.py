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
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    Variables,
    WeightedAverage,
    Weights,
    declare,
    recipe,
    shared_model,
    single_pass,
    trees,
)
from fl.blocks.exchange import send_all_but


class FedExPServer(RecipeServer):
    """State of the server.

    Attributes:
        previous: Parameters before the last round; they stay on the server.
    """

    previous: Weights


class FedExPUpload(RecipeUpload):
    """Upload of a client.

    Attributes:
        squared_length: ||D_k||^2, the squared length of its update, [].
    """

    squared_length: Tensor


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

        def init(variables: Variables) -> tuple[FedExPServer, RecipeClient]:
            server, client = base.init(variables)
            return {**server, "previous": variables["params"]}, client

        def end(
            server: FedExPServer, client: RecipeClient, work: RecipeWork
        ) -> tuple[RecipeClient, FedExPUpload]:
            client, upload = local.end(server, client, work)
            squared_length = trees.squared_distance(upload["params"], server["params"])
            return client, {**upload, "squared_length": squared_length}

        def aggregate(
            server: FedExPServer, clients: RecipeClient, uploads: FedExPUpload, n: Tensor
        ) -> tuple[FedExPServer, RecipeClient]:
            mean = trees.mean(uploads, n)
            mean_square = mean["squared_length"]
            square_of_mean = trees.squared_distance(mean["params"], server["params"])
            eta = (mean_square / (2 * (square_of_mean + self.epsilon))).nan_to_num(1.0).clamp(min=1)
            params = trees.apply(lambda w, m: w + eta * (m - w), server["params"], mean["params"])
            return {
                **server,
                "params": params,
                "buffers": mean["buffers"],
                "previous": server["params"],
            }, clients

        return replace(
            base,
            init=init,
            passes=(replace(local, end=end),),
            aggregate=WeightedAverage(aggregate),
            views={"global": mean_model if self.scored == "mean" else shared_model},
            send=send_all_but("previous"),
        )


def mean_model(server: FedExPServer, client: object) -> Variables:
    """Return the mean of the last two models of the server, as a view."""
    total = trees.apply(torch.add, server["params"], server["previous"])
    params = trees.apply(lambda leaf: leaf / 2, total)
    return {"params": params, "buffers": server["buffers"]}
