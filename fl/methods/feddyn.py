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

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    Forward,
    MeanBased,
    Method,
    Positive,
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
from fl.blocks.proximal import proximal_term


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
        terms = (task_loss, against_drift, proximal_term(self.alpha))
        base = recipe(context, terms=terms)
        local, everybody = single_pass(base), context.participants

        def init(variables: Variables) -> tuple[FedDynServer, FedDynClient]:
            server, client = base.init(variables)
            zeros = trees.zeros_like(variables["params"])
            return {**server, "drift": zeros}, {**client, "drift": zeros}

        def begin(server: FedDynServer, client: FedDynClient) -> FedDynWork:
            return {**local.begin(server, client), "drift": client["drift"]}

        def end(
            server: FedDynServer, client: FedDynClient, work: FedDynWork
        ) -> tuple[FedDynClient, RecipeUpload]:
            client, upload = local.end(server, client, work)
            drift = trees.apply(
                lambda g, w, previous: g - self.alpha * (w - previous),
                client["drift"],
                upload["params"],
                server["params"],
            )
            return {**client, "drift": drift}, upload

        def aggregate(
            server: FedDynServer, clients: FedDynClient, uploads: RecipeUpload, n: Tensor
        ) -> tuple[FedDynServer, FedDynClient]:
            mean, clients = base.aggregate(server, clients, uploads, n)
            plain = trees.mean(uploads["params"], torch.ones_like(n))
            drift = trees.apply(
                lambda h, w, previous: h - self.alpha * len(n) / everybody * (w - previous),
                server["drift"],
                plain,
                server["params"],
            )
            params = trees.apply(lambda w, h: w - h / self.alpha, plain, drift)
            return {**mean, "params": params, "drift": drift}, clients

        def mean_model(server: FedDynServer, client: object) -> Variables:
            params = trees.apply(lambda w, h: w + h / self.alpha, server["params"], server["drift"])
            return {"params": params, "buffers": server["buffers"]}

        step = replace(local, begin=begin, end=end)
        views = {"global": mean_model if self.scored == "mean" else shared_model}
        return Method(init, (step,), MeanBased(aggregate), views, send=send_all_but("drift"))


def against_drift(forward: Forward) -> Tensor:
    """-<g_k, w>, with the client's g_k."""
    work: FedDynWork = forward.work
    params = {name: forward.params[name] for name in work["drift"]}
    return -trees.inner_product(params, work["drift"])
