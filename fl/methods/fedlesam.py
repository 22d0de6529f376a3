"""FedLESAM: gradients at a point towards which the shared model came, without a second gradient.

Fan, Hu, Yao, Niu, Zhang, Sugiyama, Wang. Locally Estimated Global Perturbations are Better than
Local Perturbations for Federated Sharpness-aware Minimization. ICML 2024. arXiv:2405.18890.

Family: sharpness. Exchanged: model. Local: last model that arrived. Key: `rho`.

The perturbation points from the model that was sent now to the one that the client got when it last
took part; there is none in its first round. The authors' code (MediaBrain-SJTU/FedLESAM) has the
last move of the server for all clients (``direction: server``), and indexes it by the number of the
tensor, so that a whole tensor moves by one number; here every weight has its own. It counts clients
alike, as here under ``weighting: uniform``. The variants with control variates and with a dual
variable are not built.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    Method,
    NonNegative,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    Tree,
    Variables,
    WeightedAverage,
    Weights,
    declare,
    recipe,
    single_pass,
    trees,
)
from fl.blocks.participation import with_participation
from fl.blocks.sharpness import MIN_NORM, tree_norm


class FedLESAMServer(RecipeServer):
    """State of the server.

    Attributes:
        previous: Parameters before the last round, with `direction` ``server``.
    """

    previous: Weights


class FedLESAMClient(RecipeClient):
    """State of a client.

    Attributes:
        previous: Parameters that it was sent last, with `direction` ``client``.
    """

    previous: Weights


class FedLESAMWork(RecipeWork):
    """State of a client's pass.

    Attributes:
        perturbation: rho (w_old - w^t) / ||w_old - w^t||, of the shapes of all parameters.
    """

    perturbation: Weights


@declare("global", title="FedLESAM", tasks="any")
class FedLESAM:
    """FedAvg with gradients at a perturbed point.

    Attributes:
        rho: Distance of the perturbed point; 0 is FedAvg.
        direction: From the sent model to the one that the `client` got last (the paper), or to the
            `server`'s previous one (the code).
    """

    rho: NonNegative = 0.1
    direction: Literal["client", "server"] = "client"

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg with gradients at w + rho (w_old - w^t) / ||w_old - w^t||, equation 7."""
        of_client = self.direction == "client"
        base = with_participation(recipe(context)) if of_client else recipe(context)
        steps = FedLESAMSteps(self.rho, of_client, base)
        step = replace(single_pass(base), begin=steps.begin, loss=steps.loss, end=steps.end)
        aggregate = WeightedAverage(steps.aggregate)
        return replace(base, init=steps.init, passes=(step,), aggregate=aggregate)


@dataclass(frozen=True, eq=False)
class FedLESAMSteps:
    """Functions of the pass of FedLESAM, and what the server does.

    Attributes:
        rho: Distance of the perturbed point.
        of_client: Whether the direction is from the model that the client got last.
        base: FedAvg.
    """

    rho: float
    of_client: bool
    base: Recipe

    def init(self, variables: Variables) -> tuple[RecipeServer, RecipeClient]:
        """Return FedAvg's states, with the initial model as the previous one."""
        server, client = self.base.init(variables)
        client_state: FedLESAMClient = {**client, "previous": variables["params"]}
        server_state: FedLESAMServer = {**server, "previous": variables["params"]}
        return (server, client_state) if self.of_client else (server_state, client)

    def begin(self, server: FedLESAMServer, client: FedLESAMClient) -> FedLESAMWork:
        """Begin training, with the perturbation of equation 7."""
        old = client["previous"] if self.of_client else server["previous"]
        direction = trees.apply(torch.sub, old, server["params"])
        length = tree_norm(direction).clamp(min=MIN_NORM)
        scale = self.rho / length
        if self.of_client:
            scale = scale * (client["rounds"] > 0).to(length.dtype)
        step = trees.apply(lambda d: scale * d, direction)
        return {**single_pass(self.base).begin(server, client), "perturbation": step}

    def loss(self, server: FedLESAMServer, work: FedLESAMWork, batch: Batch) -> tuple[Tensor, Tree]:
        """Return the loss at the perturbed point."""
        params = trees.apply(torch.add, work["params"], work["perturbation"])
        return single_pass(self.base).loss(server, {**work, "params": params}, batch)

    def end(
        self, server: FedLESAMServer, client: FedLESAMClient, work: FedLESAMWork
    ) -> tuple[FedLESAMClient, RecipeUpload]:
        """Keep the sent model as the previous one."""
        client, upload = single_pass(self.base).end(server, client, work)
        if not self.of_client:
            return client, upload
        return {**client, "previous": server["params"]}, upload

    def aggregate(
        self, server: FedLESAMServer, clients: FedLESAMClient, uploads: RecipeUpload, n: Tensor
    ) -> tuple[RecipeServer, RecipeClient]:
        """Average the models, and keep the sent one as the previous one."""
        next_server, clients = self.base.aggregate(server, clients, uploads, n)
        server_state: FedLESAMServer = {**next_server, "previous": server["params"]}
        return next_server if self.of_client else server_state, clients
