"""APPLE: each client's model is a sum of all clients' core models, by weights that it learns.

Luo, Wu. Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning. IJCAI
2022. arXiv:2110.08394.

Family: mixture of clients. Exchanged: models of all clients. Local: weights of these models,
running statistics. Key: `eta_p`.

A client gets all cores and trains its own one and its weights p, the directed relationships,
through the sum; so its core moves p_kk times as far as the sum. The weights begin at p_0, shares of
the samples, which clients report before round 1, and are held near it in early rounds. Their plain
gradient steps follow the run's schedule. Defaults are those of the authors' code
(ljaiverson/pFL-APPLE, 8078196), where r counts from 0 too, but the penalty lacks its 1/2, and a
client may get fewer cores. Running statistics are those of a client's sum and stay with it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, TypedDict

import torch
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    Method,
    NonNegative,
    Rate,
    RecipeClient,
    RecipeUpload,
    RecipeWork,
    Share,
    StepResults,
    Tree,
    Variables,
    Weights,
    declare,
    recipe,
    single_pass,
    trees,
    weights_in,
)
from fl.blocks.sample_shares import share_samples


class APPLEServer(TypedDict):
    """State of the server.

    Attributes:
        cores: Core parameters of all clients, stacked: leaves [clients, ...].
        shares: Weights p_0, each client's share of all training samples, [clients].
        round: Number of finished rounds, [].
    """

    cores: Weights
    shares: Tensor
    round: Tensor


class APPLEWork(RecipeWork):
    """State of a client's pass; its personal parameters are ``offsets``, p_k - p_0, [clients].

    Attributes:
        id: Number of the client, int64 [].
    """

    id: Tensor


@declare("personal", title="APPLE", tasks="any")
class APPLE:
    """Sums of core models.

    Attributes:
        eta_p: Learning rate of the weights p in round 1.
        mu: Weight of the penalty (mu / 2) lambda(r) ||p - p_0||^2.
        until: Share of the rounds after which there is no penalty.
        decay: Decay of lambda(r) with r / L, L the last round with a penalty: `exponential`,
            .001^(r / L), or `cosine`, (1 + cos(pi r / L)) / 2.
    """

    eta_p: NonNegative = 1e-3
    mu: NonNegative = 0.1
    until: Share = 0.1
    decay: Literal["exponential", "cosine"] = "exponential"

    def build(self, context: BuildContext) -> Method:
        """Return training of core c_k and weights p_k in w_k = sum_j p_kj c_j, algorithm 1."""

        def zeros(variables: Variables) -> Weights:
            return {"offsets": trees.leaves(variables["params"])[0].new_zeros(context.clients)}

        statistics = weights_in(context.network.names["buffers"])
        base = recipe(context, local=statistics, personal_params=zeros)
        local = single_pass(base)
        last = int(self.until * context.training.rounds)

        def init(variables: Variables) -> tuple[APPLEServer, RecipeClient]:
            cores = trees.repeat(variables["params"], context.clients)
            shares, client = zeros(variables)["offsets"], base.init(variables)[1]
            return {"cores": cores, "shares": shares, "round": shares.sum()}, client

        def begin(server: APPLEServer, client: RecipeClient) -> APPLEWork:
            core: Variables = {"params": own_core(server, client["id"]), "buffers": {}}
            return {**local.begin(core, client), "id": client["id"]}

        def loss(server: APPLEServer, work: APPLEWork, batch: Batch) -> tuple[Tensor, Tree]:
            core = dict(work["params"])
            offsets = core["personal_params"]["offsets"]
            own_weight = (server["shares"] + offsets).index_select(0, work["id"].reshape(1))[0]
            trained = core_sum(server, offsets)
            for name, sent in own_core(server, work["id"]).items():
                core[name] = trained[name] + own_weight * (core[name] - sent)
            value, aux = local.loss(server, {**work, "params": core}, batch)
            return value + self.penalty(server["round"], last) * offsets.square().sum(), aux

        def update(
            server: APPLEServer, work: APPLEWork, grads: Tree, aux: StepResults, lr: Rate
        ) -> APPLEWork:
            offsets, slope = (t["personal_params"]["offsets"] for t in (work["params"], grads))
            rate = self.eta_p / context.training.lr * lr
            moved = {"offsets": offsets - trees.align_rate(rate, slope) * slope}
            next_work = local.update(server, work, grads, aux, lr)
            params = {**next_work["params"], "personal_params": moved}
            return {**work, **next_work, "params": params}

        def aggregate(
            server: APPLEServer, clients: RecipeClient, uploads: RecipeUpload, n: Tensor
        ) -> tuple[APPLEServer, RecipeClient]:
            cores = trees.replace_clients(server["cores"], clients["id"], uploads["params"])
            return {**server, "cores": cores, "round": server["round"] + 1}, clients

        def personal(server: APPLEServer, client: RecipeClient) -> Variables:
            offsets = client["personal_params"]["offsets"]
            return {"params": core_sum(server, offsets), "buffers": client["buffers"]}

        step = replace(local, begin=begin, loss=loss, update=update)
        phases, views = (share_samples(),), {"personal": personal}
        return Method(init, (step,), aggregate, views, earlier_phases=phases)

    def penalty(self, round_: Tensor, last: int) -> Tensor:
        """Return lambda(r) mu / 2, r = 0, 1, ...; 0 from r = ``last`` on."""
        progress = round_ / max(last, 1)
        cosine = (1 + torch.cos(math.pi * progress)) / 2
        size = cosine if self.decay == "cosine" else 1e-3**progress
        return self.mu / 2 * size * (round_ < last)


def own_core(server: APPLEServer, number: Tensor) -> Weights:
    """Return a client's core as the server has it."""
    return trees.apply(lambda leaf: leaf.index_select(0, number.reshape(1))[0], server["cores"])


def core_sum(server: APPLEServer, offsets: Tensor) -> Weights:
    """Return sum_j p_j c_j for p = p_0 + offsets, with the cores that the server has."""
    p = server["shares"] + offsets
    return trees.apply(lambda cores: torch.tensordot(p, cores, dims=1), server["cores"])
