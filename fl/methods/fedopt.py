"""FedOpt: the server takes a step of Adam, Yogi or Adagrad along the clients' mean change.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan. Adaptive Federated Optimization.
ICLR 2021. arXiv:2003.00295 (Algorithm 2).

Family: aggregation. Exchanged: model. Local: nothing. Key: `eta`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    Method,
    Positive,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    Share,
    Variables,
    WeightedAverage,
    Weights,
    declare,
    recipe,
    trees,
)
from fl.blocks.exchange import send_all_but


class FedOptServer(RecipeServer):
    """State of the server; what it adds stays on the server.

    Attributes:
        change: Mean change m, of the names and shapes of all parameters.
        square: Mean square v, of the same shapes.
    """

    change: Weights
    square: Weights


@declare("global", tasks="any", modalities=True)
class FedOpt:
    """FedAvg with an adaptive optimizer on the server.

    Attributes:
        server: The server's optimizer: FedAdam, FedYogi or FedAdagrad of the paper.
        eta: The server's learning rate.
        beta1: Momentum of the mean change (the paper's FedAdagrad: 0).
        beta2: Momentum of the mean square; FedAdagrad does not use it.
        tau: Constant that is added to the root of the mean square; the first mean square is tau^2.
    """

    server: Literal["adam", "yogi", "adagrad"] = "adam"
    eta: Positive = 0.01
    beta1: Share = 0.9
    beta2: Share = 0.99
    tau: Positive = 1e-3

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg whose server steps by moments of the mean change d of clients.

        m <- beta1 m + (1 - beta1) d;
        v <- beta2 v + (1 - beta2) d^2 (adam), v - (1 - beta2) d^2 sign(v - d^2) (yogi) or v + d^2
        (adagrad);
        w <- w + eta m / (sqrt(v) + tau).
        """
        base = recipe(context)

        def init(variables: Variables) -> tuple[FedOptServer, RecipeClient]:
            server, client = base.init(variables)
            params = variables["params"]
            square = trees.apply(lambda w: torch.full_like(w, self.tau**2), params)
            return {**server, "change": trees.zeros_like(params), "square": square}, client

        def aggregate(
            server: FedOptServer, clients: RecipeClient, uploads: RecipeUpload, n: Tensor
        ) -> tuple[FedOptServer, RecipeClient]:
            mean, clients = base.aggregate(server, clients, uploads, n)
            return self.stepped(server, mean), clients

        return replace(
            base,
            init=init,
            aggregate=WeightedAverage(aggregate),
            send=send_all_but("change", "square"),
        )

    def stepped(self, server: FedOptServer, mean: RecipeServer) -> FedOptServer:
        """Return the server's next state from the mean of the models."""
        change = trees.apply(
            lambda m, new, w: self.beta1 * m + (1 - self.beta1) * (new - w),
            server["change"],
            mean["params"],
            server["params"],
        )
        square = trees.apply(
            lambda v, new, w: self._square(v, (new - w).square()),
            server["square"],
            mean["params"],
            server["params"],
        )
        params = trees.apply(
            lambda w, m, v: w + self.eta * m / (v.sqrt() + self.tau),
            server["params"],
            change,
            square,
        )
        return {**mean, "params": params, "change": change, "square": square}

    def _square(self, v: Tensor, new: Tensor) -> Tensor:
        """The mean square after a round whose change has the square ``new``."""
        if self.server == "adagrad":
            return v + new
        if self.server == "yogi":
            return v - (1 - self.beta2) * new * (v - new).sign()
        return self.beta2 * v + (1 - self.beta2) * new
