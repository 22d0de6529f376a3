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
from dataclasses import dataclass, replace
from typing import Literal, TypedDict

import torch
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    Method,
    NonNegative,
    Rate,
    Recipe,
    RecipeClient,
    RecipeUpload,
    RecipeWork,
    Share,
    StepResults,
    Tree,
    Variables,
    Weights,
    consumes_gradients,
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
        base = recipe(
            context,
            local=weights_in(context.network.names["buffers"]),
            personal_params=lambda variables: {"offsets": zeros(context, variables)},
        )
        steps = APPLESteps(self, base, context)
        step = replace(single_pass(base), begin=steps.begin, loss=steps.loss, update=steps.update)
        return Method(
            steps.init,
            (step,),
            steps.aggregate,
            {"personal": personal},
            earlier_phases=(share_samples(),),
        )

    def penalty(self, round_: Tensor, last: int) -> Tensor:
        """Return lambda(r) mu / 2, r = 0, 1, ...; 0 from r = ``last`` on."""
        progress = round_ / max(last, 1)
        cosine = (1 + torch.cos(math.pi * progress)) / 2
        size = cosine if self.decay == "cosine" else 1e-3**progress
        return self.mu / 2 * size * (round_ < last)


@dataclass(frozen=True, eq=False)
class APPLESteps:
    """Functions of APPLE's pass, and what the server does.

    Attributes:
        options: The keys of the method.
        base: Local training of a model and of offsets p - p_0.
        context: The context in which the method is built.
    """

    options: APPLE
    base: Recipe
    context: BuildContext

    @property
    def last(self) -> int:
        """Number of rounds with a penalty."""
        return int(self.options.until * self.context.training.rounds)

    def init(self, variables: Variables) -> tuple[APPLEServer, RecipeClient]:
        """Return the states: all cores are the initial model."""
        cores = trees.repeat(variables["params"], self.context.clients)
        shares, client = zeros(self.context, variables), self.base.init(variables)[1]
        return {"cores": cores, "shares": shares, "round": shares.sum()}, client

    def begin(self, server: APPLEServer, client: RecipeClient) -> APPLEWork:
        """Begin training at the client's own core."""
        core: Variables = {"params": own_core(server, client["id"]), "buffers": {}}
        return {**single_pass(self.base).begin(core, client), "id": client["id"]}

    def loss(self, server: APPLEServer, work: APPLEWork, batch: Batch) -> tuple[Tensor, Tree]:
        """Return the loss of w_k, and the penalty on p."""
        core = dict(work["params"])
        offsets = core["personal_params"]["offsets"]
        own_weight = trees.rows(server["shares"] + offsets, work["id"])
        trained = core_sum(server, offsets)
        for name, sent in own_core(server, work["id"]).items():
            core[name] = trained[name] + own_weight * (core[name] - sent)
        value, aux = single_pass(self.base).loss(server, {**work, "params": core}, batch)
        penalty = self.options.penalty(server["round"], self.last)
        return value + penalty * offsets.square().sum(), aux

    @consumes_gradients
    def update(
        self, server: APPLEServer, work: APPLEWork, grads: Tree, aux: StepResults, lr: Rate
    ) -> APPLEWork:
        """Take a step of the core, and one of p at its own rate."""
        offsets, slope = (t["personal_params"]["offsets"] for t in (work["params"], grads))
        rate = self.options.eta_p / self.context.training.lr * lr
        next_offsets = {"offsets": offsets - trees.align_rate(rate, slope) * slope}
        next_work = single_pass(self.base).update(server, work, grads, aux, lr)
        params = {**next_work["params"], "personal_params": next_offsets}
        return {**work, **next_work, "params": params}

    def aggregate(
        self, server: APPLEServer, clients: RecipeClient, uploads: RecipeUpload, n: Tensor
    ) -> tuple[APPLEServer, RecipeClient]:
        """Keep the participants' cores."""
        cores = trees.replace_clients(server["cores"], clients["id"], uploads["params"])
        return {**server, "cores": cores, "round": server["round"] + 1}, clients


def zeros(context: BuildContext, variables: Variables) -> Tensor:
    """Return zeros for numbers of all clients, [clients]."""
    return trees.leaves(variables["params"])[0].new_zeros(context.clients)


def personal(server: APPLEServer, client: RecipeClient) -> Variables:
    """Return the client's sum of cores, as a view."""
    offsets = client["personal_params"]["offsets"]
    return {"params": core_sum(server, offsets), "buffers": client["buffers"]}


def own_core(server: APPLEServer, number: Tensor) -> Weights:
    """Return a client's core as the server has it."""
    return trees.take(server["cores"], number)


def core_sum(server: APPLEServer, offsets: Tensor) -> Weights:
    """Return sum_j p_j c_j for p = p_0 + offsets, with the cores that the server has."""
    p = server["shares"] + offsets
    return trees.apply(lambda cores: torch.tensordot(p, cores, dims=1), server["cores"])
