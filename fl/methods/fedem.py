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

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypedDict

import torch
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    ClientFacts,
    Count,
    Inputs,
    Method,
    Network,
    Pass,
    Predictor,
    Recipe,
    Sweep,
    Tree,
    Variables,
    WeightedAverage,
    declare,
    recipe,
    rng,
    single_pass,
    trees,
)
from fl.blocks.joint_passes import joint_pass

FedEMServer = Mapping[str, Variables]
"""State of the server: the variables of each model, by its name ``model0``, ``model1``, ..."""


class Mixture(TypedDict):
    """Further state of a client; under a model's name it has its state in that model's method.

    Attributes:
        mixture: Its weights of the models, [M], of sum 1.
    """

    mixture: Tensor


class FedEMClient(ClientFacts, Mixture):
    """State of a client."""


class FedEMModels(Variables):
    """Scored model; ``params`` and ``buffers`` are those of the first model.

    Attributes:
        models: Variables of each model, by its name.
        mixture: As in `Mixture`.
    """

    models: FedEMServer
    mixture: Tensor


@declare("personal", title="FedEM")
class FedEM:
    """FedAvg of several models at once, which clients mix.

    Attributes:
        models: Number of models; 1 is FedAvg.
    """

    models: Count = 3

    def build(self, context: BuildContext) -> Method:
        """Return steps on sum_m sum_i q_im loss_m(i), with q from algorithm 1 of the paper."""
        base = recipe(context)
        names = tuple(f"model{number}" for number in range(self.models))
        local = with_shares(single_pass(base))
        joint = joint_pass(dict.fromkeys(names, local), has_server_parts=True)
        steps = FedEMSteps(names, base, joint, context.network, context.seed)
        training = replace(joint, begin=steps.begin, reference=steps.reference)
        return Method(
            steps.init,
            (training, Sweep(steps.look, steps.renew)),
            WeightedAverage(average),
            {"personal": Predictor(steps.mixed_models, steps.predict, is_per_sample=True)},
        )


@dataclass(frozen=True, eq=False)
class FedEMSteps:
    """Functions of FedEM's passes and of its view.

    Attributes:
        names: Names of the models.
        base: FedAvg of one model.
        joint: The pass that trains all models on the same batches.
        network: The network.
        seed: Seed of the run.
    """

    names: tuple[str, ...]
    base: Recipe
    joint: Pass
    network: Network
    seed: int

    def init(self, variables: Variables) -> tuple[FedEMServer, Tree]:
        """Return the states of all models, which begin apart, and equal weights of them."""
        seeds = (rng.torch_seed(self.seed, "fedem", name) for name in self.names[1:])
        fresh = (trees.apply(Tensor.to, self.network.init(seed), variables) for seed in seeds)
        starts = dict(zip(self.names, map(self.base.init, (variables, *fresh)), strict=True))
        mixture = trees.leaves(variables["params"])[0].new_full(
            (len(self.names),), 1 / len(self.names)
        )
        client = {name: start for name, (_, start) in starts.items()} | {"mixture": mixture}
        return {name: server for name, (server, _) in starts.items()}, client

    def log_probabilities(self, models: FedEMServer, x: Inputs) -> Tensor:
        """Logarithms of the probabilities of the classes by each model, [b, models, C]."""
        outputs = [
            self.network.eval(models[name]["params"], models[name]["buffers"], x).outputs
            for name in self.names
        ]
        return torch.stack(outputs, dim=1).log_softmax(-1)

    def shares(self, server: FedEMServer, mixture: Tensor, batch: Batch) -> Tensor:
        """Return the shares q_m of each sample, [b, models], the E-step."""
        labels = batch["y"][:, None, None].expand(-1, len(self.names), 1)
        likelihood = self.log_probabilities(server, batch["x"]).gather(-1, labels).squeeze(-1)
        return responsibilities(likelihood, mixture)

    def begin(self, server: FedEMServer, client: FedEMClient) -> Tree:
        """Begin training of all models."""
        return {**self.joint.begin(server, client), "mixture": client["mixture"]}

    def reference(self, server: FedEMServer, work: Tree, batch: Batch) -> Tree:
        """Return the shares of a batch's samples, which stay fixed in a pass."""
        q = self.shares(server, work["mixture"], batch)
        terms = self.joint.reference(server, work, batch) if self.joint.reference else {}
        return {
            name: {**terms.get(name, {}), "share": q[:, m]} for m, name in enumerate(self.names)
        }

    def look(self, server: FedEMServer, client: FedEMClient, upload: Tree, batch: Batch) -> Tree:
        """Return the sums of the shares over a client's samples."""
        q = self.shares(server, client["mixture"], batch)
        return {"shares": batch["weight"].to(q.dtype) @ q}

    def renew(
        self, server: FedEMServer, client: FedEMClient, upload: Tree, totals: Tree
    ) -> tuple[FedEMClient, Tree]:
        """Set the weights of the models to the mean shares, the M-step."""
        count = totals["shares"].sum()
        mean = totals["shares"] / (count + (count == 0))
        return {**client, "mixture": torch.where(count > 0, mean, client["mixture"])}, upload

    def mixed_models(self, server: FedEMServer, client: FedEMClient) -> FedEMModels:
        """Return all models and their weights, as a view."""
        return {**server[self.names[0]], "models": server, "mixture": client["mixture"]}

    def predict(self, variables: FedEMModels, memory: Tree, x: Inputs) -> Tensor:
        """Return the logarithm of sum_m pi_m p_m(y | x)."""
        weights = variables["mixture"].log()[:, None]
        return (self.log_probabilities(variables["models"], x) + weights).logsumexp(1)


def average(
    server: FedEMServer, clients: FedEMClient, uploads: Tree, n: Tensor
) -> tuple[FedEMServer, FedEMClient]:
    """Average each model over clients."""
    return trees.mean(uploads, n), clients


def with_shares(pass_: Pass) -> Pass:
    """Return a pass that counts each sample by its share, in a mean over all samples."""

    def loss(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        weight = batch["weight"]
        shared_weight = weight * batch["reference"]["share"]
        value, aux = pass_.loss(server, work, {**batch, "weight": shared_weight})
        count = weight.sum()
        return value * (shared_weight.sum() / (count + (count == 0))), aux

    return replace(pass_, loss=loss)


def responsibilities(likelihood: Tensor, mixture: Tensor) -> Tensor:
    """Return the E-step's q, [b, models], from logarithms of likelihoods [b, models]."""
    return (likelihood + mixture.log()).softmax(-1)
