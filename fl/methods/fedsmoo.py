"""FedSMOO: FedSpeed whose clients agree on a perturbation, by dual variables of their own.

Sun, Shen, Chen, Ding, Tao. Dynamic Regularized Sharpness Aware Minimization in Federated Learning:
Approaching Global Consistency and Smooth Landscape. ICML 2023. arXiv:2305.11584.

Family: sharpness. Exchanged: model, perturbation. Local: dual variables. Key: `rho`.

As in the authors' code (woodenchild95/FL-Simulator, 502bec6), the shared perturbation s is rho
times the direction of the mean of the clients' variables mu_k, without a further term whose norm is
small, and mu_k changes at every step. Also as there, the server adds the mean dual variable of all
clients, as FedDyn does, and clients count alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    MeanBased,
    Method,
    NonNegative,
    Pass,
    Rate,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    Tree,
    Variables,
    Weights,
    declare,
    recipe,
    shared_model,
    single_pass,
    trees,
)
from fl.blocks.dual_correction import with_dual_correction
from fl.blocks.sharpness import MIN_NORM, sharpness_aware, tree_norm


class FedSMOOServer(RecipeServer):
    """State of the server.

    Attributes:
        perturbation: Shared perturbation s, of the names and shapes of all parameters.
    """

    perturbation: Weights


class FedSMOOClient(RecipeClient):
    """State of a client.

    Attributes:
        mu: Dual variable mu_k of the perturbation, of the same shapes.
    """

    mu: Weights


class FedSMOOWork(RecipeWork):
    """State of a client's pass.

    Attributes:
        mu: As in `FedSMOOClient`.
    """

    mu: Weights


class FedSMOOUpload(RecipeUpload):
    """Upload of a client.

    Attributes:
        mu: As in `FedSMOOClient`.
    """

    mu: Weights


@declare("global", title="FedSMOO", tasks="any")
class FedSMOO:
    """FedAvg with a shared perturbation and a dual variable.

    Attributes:
        rho: Length of the perturbation.
        lam: Weight of the proximal term and its correction.
    """

    rho: NonNegative = 0.1
    lam: NonNegative = 0.1

    def build(self, context: BuildContext) -> Method:
        """Return gradients at w + e with e = rho d / ||d||, d = g - mu_k - s; mu_k += e - s."""
        base = recipe(context)
        sharp = sharpness_aware(single_pass(base), self.rho, direction=direction)
        steps = FedSMOOSteps(self.rho, base, sharp)
        step = replace(sharp, begin=steps.begin, update=steps.update, end=steps.end)
        method = replace(
            base, init=steps.init, passes=(step,), aggregate=MeanBased(steps.aggregate)
        )
        return with_dual_correction(method, context, self.lam, of_all=True)


@dataclass(frozen=True, eq=False)
class FedSMOOSteps:
    """Functions of the pass of FedSMOO, and what the server does.

    Attributes:
        rho: Length of the perturbation.
        base: FedAvg.
        sharp: Its pass, with gradients at w + e.
    """

    rho: float
    base: Recipe
    sharp: Pass[RecipeWork, RecipeUpload]

    def init(self, variables: Variables) -> tuple[FedSMOOServer, FedSMOOClient]:
        """Return FedAvg's states; s and mu_k are 0."""
        server, client = self.base.init(variables)
        zeros = trees.zeros_like(variables["params"])
        return {**server, "perturbation": zeros}, {**client, "mu": zeros}

    def begin(self, server: FedSMOOServer, client: FedSMOOClient) -> FedSMOOWork:
        """Begin training, with mu_k."""
        return {**single_pass(self.base).begin(server, client), "mu": client["mu"]}

    def update(
        self, server: FedSMOOServer, work: FedSMOOWork, grads: Tree, aux: Tree, lr: Rate
    ) -> FedSMOOWork:
        """Take a step at w + e, and return mu_k + e - s."""
        mu = trees.apply(
            lambda mu, e, s: mu + e - s, work["mu"], aux["perturbation"], server["perturbation"]
        )
        return {**self.sharp.update(server, work, grads, aux, lr), "mu": mu}

    def end(
        self, server: FedSMOOServer, client: FedSMOOClient, work: FedSMOOWork
    ) -> tuple[FedSMOOClient, FedSMOOUpload]:
        """Keep mu_k, and upload it."""
        client, upload = single_pass(self.base).end(server, client, work)
        return {**client, "mu": work["mu"]}, {**upload, "mu": work["mu"]}

    def aggregate(
        self, server: FedSMOOServer, clients: FedSMOOClient, uploads: FedSMOOUpload, n: Tensor
    ) -> tuple[FedSMOOServer, FedSMOOClient]:
        """Average the models, and return s = rho m / ||m|| with m the mean of mu_k."""
        models = shared_model(uploads, None)
        next_server, clients = self.base.aggregate(server, clients, models, n)
        mean = trees.mean(uploads["mu"], torch.ones_like(n))
        scale = self.rho / tree_norm(mean).clamp(min=MIN_NORM)
        perturbation = trees.apply(lambda mu: scale * mu, mean)
        return {**next_server, "perturbation": perturbation}, clients


def direction(server: FedSMOOServer, work: FedSMOOWork, gradient: Tree) -> Tree:
    """Return d = g - mu_k - s."""
    return trees.apply(lambda g, mu, s: g - mu - s, gradient, work["mu"], server["perturbation"])
