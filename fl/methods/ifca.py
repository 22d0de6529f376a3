"""IFCA: the server keeps several models; each client trains the one that fits its samples best.

Ghosh, Chung, Yin, Ramchandran. An Efficient Framework for Clustered Federated Learning. NeurIPS
2020. arXiv:2006.04088.

Family: mixture of clients. Exchanged: down several models, up one. Local: nothing. Key: `models`.

This is the version that averages models. All participants get all models. The models begin with
random weights of their own, because equal ones would all be chosen alike: the first is the run's
initial model, the others add to it noise of the size of its weights. Every client, whether it took
part or not, is scored with the model that now has the smallest loss on its training samples. The
paper and the authors' code count clients of a model alike, as here under ``weighting: uniform``.
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
    Count,
    Inputs,
    Method,
    NonNegative,
    Predictor,
    Recipe,
    RecipeClient,
    RecipeUpload,
    RecipeWork,
    Sweep,
    Tree,
    Variables,
    all_weights,
    declare,
    recipe,
    rng,
    select,
    shared_model,
    single_pass,
    trees,
)
from fl.blocks.candidate_models import losses_by_model


class IFCAServer(TypedDict):
    """State of the server.

    Attributes:
        models: Variables of all models, stacked: leaves [models, ...].
    """

    models: Variables


class IFCAClient(RecipeClient):
    """State of a client.

    Attributes:
        cluster: Number of its model, int64 [].
    """

    cluster: Tensor


class IFCAUpload(RecipeUpload):
    """Upload of a client.

    Attributes:
        cluster: Number of the model that it trained, int64 [].
    """

    cluster: Tensor


class Candidates(Variables):
    """View of a client: the model of its cluster, and all models, for clients that train no more.

    Attributes:
        models: As in `IFCAServer`.
    """

    models: Variables


@declare("personal", title="IFCA")
class IFCA:
    """FedAvg of several models.

    Attributes:
        models: Number of models; 1 is FedAvg.
        spread: Standard deviation of the noise that sets the models apart before round 1, as a
            share of that of each weight tensor.
    """

    models: Count = 2
    spread: NonNegative = 1.0

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg in each cluster, with clusters by the smallest loss, algorithm 1."""
        base = recipe(context)
        steps = IFCASteps(self, base, context)
        training = replace(single_pass(base), begin=steps.begin, end=steps.end)
        view = Predictor(
            steps.with_models, steps.predict, steps.look_at_samples, steps.choose_again
        )
        passes = (Sweep(steps.look, steps.choose), training)
        return Method(steps.init, passes, steps.aggregate, {"personal": view})

    def with_noise(self, model: Variables, generator: torch.Generator) -> Variables:
        """Return a model with noise on its parameters."""

        def noisy(w: Tensor) -> Tensor:
            size = w.std(unbiased=False) if w.numel() > 1 else w.abs().sum()
            noise = torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w)
            return w + self.spread * size * noise

        return {**model, "params": trees.apply(noisy, model["params"])}


@dataclass(frozen=True, eq=False)
class IFCASteps:
    """Functions of IFCA's passes and of its view.

    Attributes:
        options: The keys of the method.
        base: FedAvg.
        context: The context in which the method is built.
    """

    options: IFCA
    base: Recipe
    context: BuildContext

    def init(self, variables: Variables) -> tuple[IFCAServer, IFCAClient]:
        """Return the models before round 1: the initial one, and copies with noise."""
        first = select(variables, all_weights)
        noise = torch.Generator().manual_seed(rng.torch_seed(self.context.seed, "ifca"))
        copies = [
            first,
            *(self.options.with_noise(first, noise) for _ in range(self.options.models - 1)),
        ]
        _, client = self.base.init(variables)
        number = torch.zeros((), dtype=torch.int64)
        return {"models": trees.stack(copies)}, {**client, "cluster": number}

    def losses(self, models: Variables, batch: Batch) -> Tensor:
        """Cross-entropy of each sample by each model, [b, models]."""
        copies = [trees.take(models, number) for number in range(self.options.models)]
        return losses_by_model(self.context.network, copies, batch)

    def look(self, server: IFCAServer, client: IFCAClient, upload: Tree, batch: Batch) -> Tree:
        """Return the losses of all models on a client's samples."""
        values = self.losses(server["models"], batch)
        return {"losses": batch["weight"].to(values.dtype) @ values}

    def choose(
        self, server: IFCAServer, client: IFCAClient, upload: Tree, totals: Tree
    ) -> tuple[IFCAClient, Tree]:
        """Choose the model with the smallest loss."""
        return {**client, "cluster": totals["losses"].argmin()}, {}

    def begin(self, server: IFCAServer, client: IFCAClient) -> RecipeWork:
        """Begin training at the model of the client's cluster."""
        return single_pass(self.base).begin(cluster_model(server, client), client)

    def end(
        self, server: IFCAServer, client: IFCAClient, work: RecipeWork
    ) -> tuple[IFCAClient, IFCAUpload]:
        """Upload the trained model, and its number."""
        client, upload = single_pass(self.base).end(cluster_model(server, client), client, work)
        return client, {**upload, "cluster": client["cluster"]}

    def aggregate(
        self, server: IFCAServer, clients: IFCAClient, uploads: IFCAUpload, n: Tensor
    ) -> tuple[IFCAServer, IFCAClient]:
        """Average the models of each cluster; a model without clients stays."""
        cluster = uploads["cluster"]
        models = shared_model(uploads, None)
        mean_models = []
        for number in range(self.options.models):
            weights, previous = n * (cluster == number), trees.take(server["models"], number)
            mean_models.append(trees.mean(models, weights) if weights.any() else previous)
        return {"models": trees.stack(mean_models)}, clients

    def with_models(self, server: IFCAServer, client: IFCAClient) -> Candidates:
        """Return the model of the client's cluster, and all models, as a view."""
        return {**cluster_model(server, client), "models": server["models"]}

    def look_at_samples(self, variables: Candidates, batch: Batch) -> Tree:
        """Return the losses of all models for each sample."""
        return {"losses": self.losses(variables["models"], batch)}

    def choose_again(self, variables: Candidates, values: Mapping[str, Tree]) -> Tree:
        """Choose a model for a client from its training samples, if it has some."""
        if "train" not in values:
            return {}
        return {"cluster": values["train"]["losses"].mean(0).argmin()}

    def predict(self, variables: Candidates, memory: Tree, x: Inputs) -> Tensor:
        """Return the outputs of the model that was chosen."""
        model = trees.take(variables["models"], memory["cluster"]) if memory else variables
        return self.context.network.eval(model["params"], model["buffers"], x).outputs


def cluster_model(server: IFCAServer, client: IFCAClient) -> Variables:
    """Return the model of a client's cluster."""
    return trees.take(server["models"], client["cluster"])
