"""FedAvgM: the server moves along a running mean of the clients' mean change.

Hsu, Qi, Brown. Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification. 2019. arXiv:1909.06335.

Family: aggregation. Exchanged: model. Local: nothing. Key: `beta`.
"""

from __future__ import annotations

from dataclasses import replace

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


class FedAvgMServer(RecipeServer):
    """State of the server.

    Attributes:
        velocity: v, of the names and shapes of all parameters; it stays on the server.
    """

    velocity: Weights


@declare("global", tasks="any", modalities=True)
class FedAvgM:
    """FedAvg with momentum on the server.

    Attributes:
        beta: Momentum of the server.
        eta: Learning rate of the server (the paper: 1).
    """

    beta: Share = 0.9
    eta: Positive = 1.0

    def build(self, context: BuildContext) -> Method:
        """V <- beta v + (w - mean_k w_k);  w <- w - eta v."""
        base = recipe(context)

        def init(variables: Variables) -> tuple[FedAvgMServer, RecipeClient]:
            server, client = base.init(variables)
            return {**server, "velocity": trees.zeros_like(variables["params"])}, client

        def aggregate(
            server: FedAvgMServer, clients: RecipeClient, uploads: RecipeUpload, n: Tensor
        ) -> tuple[FedAvgMServer, RecipeClient]:
            mean, clients = base.aggregate(server, clients, uploads, n)
            velocity = trees.apply(
                lambda v, w, m: self.beta * v + (w - m),
                server["velocity"],
                server["params"],
                mean["params"],
            )
            params = trees.apply(lambda w, v: w - self.eta * v, server["params"], velocity)
            return {**mean, "params": params, "velocity": velocity}, clients

        return replace(
            base, init=init, aggregate=WeightedAverage(aggregate), send=send_all_but("velocity")
        )
