"""FedDyn: a linear and a quadratic term make clients' optima agree with the shared one.

Acar, Zhao, Matas, Mattina, Whatmough, Saligrama. Federated Learning Based on Dynamic
Regularization. ICLR 2021. arXiv:2111.04263.

Family: drift. Exchanged: model. Local: dual variable. Key: `alpha`.

As in algorithm 1, clients count alike and are not weighted by samples; running statistics of batch
normalisation are averaged by samples. The released code divides a client's alpha by its share of
the samples, relative to the mean client, and clips gradients at norm 10. It also scores the mean of
the round's trained models; here the server's model, which contains h, is scored by default.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    Forward,
    MeanBased,
    Method,
    Positive,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    Variables,
    Weights,
    declare,
    recipe,
    shared_model,
    single_pass,
    task_loss,
    trees,
)
from fl.blocks.exchange import send_all_but
from fl.blocks.proximal import ProximalTerm


class FedDynServer(RecipeServer):
    """State of the server.

    Attributes:
        drift: h, of the names and shapes of all parameters; it stays on the server.
    """

    drift: Weights


class FedDynClient(RecipeClient):
    """State of a client.

    Attributes:
        drift: Dual variable g_k, of the names and shapes of all parameters.
    """

    drift: Weights


class FedDynWork(RecipeWork):
    """State of a client's pass.

    Attributes:
        drift: As in `FedDynClient`.
    """

    drift: Weights


@declare("global", tasks="any")
class FedDyn:
    """FedAvg with a dynamic regulariser.

    Attributes:
        alpha: Weight of the regulariser -<g_k, w> + (alpha/2) ||w - w^t||^2 (the paper: .1, .01,
            .001).
        scored: Evaluated model: the `server`'s model w, or the `mean` of the clients' models, w + h
            / alpha.
    """

    alpha: Positive = 0.01
    scored: Literal["server", "mean"] = "server"

    def build(self, context: BuildContext) -> Method:
        """FedAvg with two more terms; clients keep g_k, the server keeps h."""
        terms = (task_loss, AgainstDrift(), ProximalTerm(self.alpha))
        base = recipe(context, terms=terms)
        steps = FedDynSteps(self.alpha, base, context.participants)
        step = replace(single_pass(base), begin=steps.begin, end=steps.end)
        views = {"global": steps.mean_model if self.scored == "mean" else shared_model}
        aggregate = MeanBased(steps.aggregate)
        return Method(steps.init, (step,), aggregate, views, send=send_all_but("drift"))


@dataclass(frozen=True, eq=False)
class FedDynSteps:
    """Functions of the pass of FedDyn, and what the server does.

    Attributes:
        alpha: Weight of the regulariser.
        base: FedAvg with the terms of the regulariser.
        clients: Number of clients that can take part.
    """

    alpha: float
    base: Recipe
    clients: int

    def init(self, variables: Variables) -> tuple[FedDynServer, FedDynClient]:
        """Return FedAvg's states; g_k and h are 0."""
        server, client = self.base.init(variables)
        zeros = trees.zeros_like(variables["params"])
        return {**server, "drift": zeros}, {**client, "drift": zeros}

    def begin(self, server: FedDynServer, client: FedDynClient) -> FedDynWork:
        """Begin training, with g_k."""
        return {**single_pass(self.base).begin(server, client), "drift": client["drift"]}

    def end(
        self, server: FedDynServer, client: FedDynClient, work: FedDynWork
    ) -> tuple[FedDynClient, RecipeUpload]:
        """Return g_k - alpha (w_k - w)."""
        client, upload = single_pass(self.base).end(server, client, work)
        drift = trees.apply(
            lambda g, w, previous: g - self.alpha * (w - previous),
            client["drift"],
            upload["params"],
            server["params"],
        )
        return {**client, "drift": drift}, upload

    def aggregate(
        self, server: FedDynServer, clients: FedDynClient, uploads: RecipeUpload, n: Tensor
    ) -> tuple[FedDynServer, FedDynClient]:
        """Return h - alpha / clients sum_k (w_k - w), and w = mean w_k - h / alpha."""
        mean, clients = self.base.aggregate(server, clients, uploads, n)
        mean_params = trees.mean(uploads["params"], torch.ones_like(n))
        drift = trees.apply(
            lambda h, w, previous: h - self.alpha * len(n) / self.clients * (w - previous),
            server["drift"],
            mean_params,
            server["params"],
        )
        params = trees.apply(lambda w, h: w - h / self.alpha, mean_params, drift)
        return {**mean, "params": params, "drift": drift}, clients

    def mean_model(self, server: FedDynServer, client: object) -> Variables:
        """Return the mean of the clients' models, w + h / alpha, as a view."""
        params = trees.apply(lambda w, h: w + h / self.alpha, server["params"], server["drift"])
        return {"params": params, "buffers": server["buffers"]}


class AgainstDrift:
    """-<g_k, w>, with the client's g_k."""

    def __call__(self, forward: Forward) -> Tensor:
        """Return the term of a forward pass."""
        work: FedDynWork = forward.work
        params = {name: forward.params[name] for name in work["drift"]}
        return -trees.inner_product(params, work["drift"])

    def add_gradient(
        self, server: RecipeServer, work: FedDynWork, params: Weights, grads: Weights
    ) -> Tensor:
        """Add -g_k to the gradients, see `fl.api.term.WeightTerm`."""
        for name in grads.keys() & work["drift"].keys():
            grads[name].sub_(work["drift"][name])
        return -trees.inner_products({name: params[name] for name in work["drift"]}, work["drift"])
