"""Elastic aggregation: the server moves weights less, on which the clients' outputs depend more.

Chen, Hu, Tan, Wei, Wu. Elastic Aggregation for Federated Optimization. CVPR 2023.

Family: aggregation. Exchanged: model, sensitivity of each weight. Local: nothing. Key: `tau`.

Before it trains, a client measures how sensitive its outputs are to each weight: a running mean,
from 0, over its batches of |d ||f(x)||^2 / dw|, with the mean over a batch inside, in evaluation
mode and without labels. The server compares the clients' mean with the largest sensitivity of this
weight among the round's clients. (FL-bench, 06e658b, reads the paper so, too; no code of the
authors could be read.) A weight to which no client is sensitive moves by 1 + tau times the mean.
The paper measures on some of a client's samples, FL-bench on 30 %; here all are used, in one epoch
more. Running statistics are averaged. A run's ``clip_norm`` acts on these gradients, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

import torch
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    Method,
    NonNegative,
    Pass,
    Rate,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    Sampling,
    Share,
    Tree,
    Weights,
    declare,
    recipe,
    shared_model,
    single_pass,
    trees,
    weighted_mean,
)


class ElasticClient(RecipeClient):
    """State of a client, between its two passes.

    Attributes:
        sensitivity: Omega_k of every parameter, by name.
    """

    sensitivity: Weights


class ElasticUpload(RecipeUpload):
    """Upload of a client.

    Attributes:
        sensitivity: As in `ElasticClient`.
    """

    sensitivity: Weights


class MeasurementWork(TypedDict):
    """State of the pass that measures.

    Attributes:
        params: Parameters that the server sent; they stay as they are.
        sensitivity: As in `ElasticClient`, over the batches so far.
    """

    params: Weights
    sensitivity: Weights


@declare("global", title="Elastic aggregation", tasks="any")
class Elastic:
    """FedAvg with a step of the server of its own for each weight.

    Attributes:
        tau: Step of a weight that is as sensitive for all clients; 1 more for an insensitive one.
        mu: Momentum of the running mean over batches.
    """

    tau: NonNegative = 0.5
    mu: Share = 0.95

    def build(self, context: BuildContext) -> Method:
        """W <- w + zeta mean_k (w_k - w), with zeta = 1 + tau - mean_k Omega_k / max_k Omega_k."""
        base = recipe(context)
        local = single_pass(base)

        def end(
            server: RecipeServer, client: ElasticClient, work: RecipeWork
        ) -> tuple[Tree, ElasticUpload]:
            sensitivity = client["sensitivity"]
            client_state, upload = local.end(server, client, work)
            state = {key: leaf for key, leaf in client_state.items() if key != "sensitivity"}
            return state, {**upload, "sensitivity": sensitivity}

        def aggregate(
            server: RecipeServer, clients: ElasticClient, uploads: ElasticUpload, n: Tensor
        ) -> tuple[RecipeServer, ElasticClient]:
            models = shared_model(uploads, None)
            next_server, clients = base.aggregate(server, clients, models, n)
            mean_sensitivity = trees.mean(uploads["sensitivity"], n)
            largest = trees.apply(lambda omega: omega.amax(0), uploads["sensitivity"])
            params = trees.apply(
                self.next_weights,
                server["params"],
                next_server["params"],
                mean_sensitivity,
                largest,
            )
            return {**next_server, "params": params}, clients

        passes = (self.measurement(context), replace(local, end=end))
        return replace(base, passes=passes, aggregate=aggregate)

    def measurement(self, context: BuildContext) -> Pass:
        """Return the pass that measures sensitivities and moves no weight."""

        def output_size(
            server: RecipeServer, work: MeasurementWork, batch: Batch
        ) -> tuple[Tensor, Tree]:
            outputs = context.network.eval(work["params"], server["buffers"], batch["x"]).outputs
            return weighted_mean(outputs.flatten(1).square().sum(1), batch), {}

        def update(
            server: RecipeServer, work: MeasurementWork, grads: Weights, aux: Tree, lr: Rate
        ) -> MeasurementWork:
            sensitivity = trees.apply(
                lambda omega, g: self.mu * omega + (1 - self.mu) * g.abs(),
                work["sensitivity"],
                grads,
            )
            return {**work, "sensitivity": sensitivity}

        return Pass(begin_measurement, output_size, update, keep_sensitivity, Sampling(epochs=1))

    def next_weights(self, w: Tensor, mean: Tensor, sensitivity: Tensor, largest: Tensor) -> Tensor:
        """Return the server's next weights from the clients' mean and their sensitivities."""
        is_sensitive = largest > 0
        ratio = torch.where(is_sensitive, sensitivity / torch.where(is_sensitive, largest, 1), 0)
        return w + (1 + self.tau - ratio) * (mean - w)


def begin_measurement(server: RecipeServer, client: RecipeClient) -> MeasurementWork:
    """Begin with sensitivities of 0."""
    return {"params": server["params"], "sensitivity": trees.zeros_like(server["params"])}


def keep_sensitivity(
    server: RecipeServer, client: RecipeClient, work: MeasurementWork
) -> tuple[ElasticClient, Tree]:
    """Keep the sensitivities for the upload."""
    return {**client, "sensitivity": work["sensitivity"]}, {}
