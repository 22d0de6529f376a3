"""FedEM: every client mixes the predictions of a few shared models, by weights of its own.

Marfoq, Neglia, Bellet, Kameni, Vidal. Federated Multi-Task Learning under a Mixture of
Distributions. NeurIPS 2021. arXiv:2108.10252.

Family: mixture of clients. Exchanged: several models. Local: weights of the models. Key: `models`.

The E-step shares each sample out among the models, by their losses at the start of the round. The
M-step trains each model on all samples with these shares as weights; the client's new weights are
the mean shares. Clients are scored with the mixture of probabilities, by the weights of the last
round in which they took part, at first equal ones. Every model but the first begins with initial
weights of its own, as in the authors' code (omarfoq/FedEM, 996fadd), whose number of models, 3, is
the default. A term that a study adds counts, for a model, as much as the model's share of a batch.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    Count,
    Inputs,
    Method,
    Pass,
    Predictor,
    Sweep,
    Tree,
    WeightedAverage,
    declare,
    recipe,
    rng,
    single_pass,
    trees,
)
from fl.blocks.joint_passes import joint_pass

MIXTURE, SHARE = "mixture", "share"


@declare("personal", title="FedEM")
class FedEM:
    """FedAvg of several models at once, which clients mix.

    Attributes:
        models: Number of models; 1 is FedAvg.
    """

    models: Count = 3

    def build(self, context: BuildContext) -> Method:
        """Return steps on sum_m sum_i q_im loss_m(i), with q from algorithm 1 of the paper."""
        base, network = recipe(context), context.network
        names = [f"model{number}" for number in range(self.models)]
        local = with_shares(single_pass(base))
        joint = joint_pass(dict.fromkeys(names, local), has_server_parts=True)

        def init(variables: Tree) -> tuple[Tree, Tree]:
            seeds = (rng.torch_seed(context.seed, "fedem", name) for name in names[1:])
            fresh = (trees.apply(Tensor.to, network.init(seed), variables) for seed in seeds)
            starts = dict(zip(names, map(base.init, (variables, *fresh)), strict=True))
            mixture = trees.leaves(variables["params"])[0].new_full((len(names),), 1 / len(names))
            client = {name: start for name, (_, start) in starts.items()} | {MIXTURE: mixture}
            return {name: server for name, (server, _) in starts.items()}, client

        def log_probabilities(models: Tree, x: Inputs) -> Tensor:
            """Logarithms of the probabilities of the classes by each model, [b, models, C]."""
            outputs = [
                network.eval(models[name]["params"], models[name]["buffers"], x).outputs
                for name in names
            ]
            return torch.stack(outputs, dim=1).log_softmax(-1)

        def shares(server: Tree, mixture: Tensor, batch: Batch) -> Tensor:
            labels = batch["y"][:, None, None].expand(-1, len(names), 1)
            likelihood = log_probabilities(server, batch["x"]).gather(-1, labels).squeeze(-1)
            return responsibilities(likelihood, mixture)

        def begin(server: Tree, client: Tree) -> Tree:
            return {**joint.begin(server, client), MIXTURE: client[MIXTURE]}

        def reference(server: Tree, work: Tree, batch: Batch) -> Tree:
            q = shares(server, work[MIXTURE], batch)
            added = joint.reference(server, work, batch) if joint.reference else {}
            return {name: {**added.get(name, {}), SHARE: q[:, m]} for m, name in enumerate(names)}

        def look(server: Tree, client: Tree, upload: Tree, batch: Batch) -> Tree:
            q = shares(server, client[MIXTURE], batch)
            return {"shares": batch["weight"].to(q.dtype) @ q}

        def renew(server: Tree, client: Tree, upload: Tree, totals: Tree) -> tuple[Tree, Tree]:
            count = totals["shares"].sum()
            mean = totals["shares"] / (count + (count == 0))
            return {**client, MIXTURE: torch.where(count > 0, mean, client[MIXTURE])}, dict(upload)

        def average(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
            return trees.mean(uploads, n), dict(clients)

        def mixed(server: Tree, client: Tree | None) -> Tree:
            return {**server[names[0]], "models": server, MIXTURE: (client or {})[MIXTURE]}

        def predict(variables: Tree, memory: Tree, x: Inputs) -> Tensor:
            weights = variables[MIXTURE].log()[:, None]
            return (log_probabilities(variables["models"], x) + weights).logsumexp(1)

        step = replace(joint, begin=begin, reference=reference)
        view = Predictor(mixed, predict, is_per_sample=True)
        return Method(
            init, (step, Sweep(look, renew)), WeightedAverage(average), {"personal": view}
        )


def with_shares(pass_: Pass) -> Pass:
    """Return a pass that counts each sample by its share, in a mean over all samples."""

    def loss(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        weight = batch["weight"]
        shared_weight = weight * batch["reference"][SHARE]
        value, aux = pass_.loss(server, work, {**batch, "weight": shared_weight})
        count = weight.sum()
        return value * (shared_weight.sum() / (count + (count == 0))), aux

    return replace(pass_, loss=loss)


def responsibilities(likelihood: Tensor, mixture: Tensor) -> Tensor:
    """Return the E-step's q, [b, models], from logarithms of likelihoods [b, models]."""
    return (likelihood + mixture.log()).softmax(-1)
