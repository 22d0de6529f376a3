"""kNN-Per: a stored shared model, and beside it the nearest training samples of each client.

Marfoq, Neglia, Vidal, Kameni. Personalized Federated Learning through Local Memorization. ICML
2022. arXiv:2111.09360.

Family: stored model. Exchanged: nothing. Local: features of the samples. Key: `lam`.

Nothing is trained: an entry names the entry from whose model it starts (``start: fedavg``). A
client remembers the features of its training samples and mixes what its neighbours say with what
the shared model says: lambda kNN + (1 - lambda) model, equation 10. As in the released code,
distances are squared and divided by the number of features, and the search is exact. That code
scores a grid of lambda on the test samples; here each client chooses by its validation samples.
pFedGraph's code has lam .5, distances `summed` and votes by `softmax`.
Clients held out of training are served too; one without a training sample has the shared model
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    Count,
    Inputs,
    Method,
    Positive,
    Predictor,
    Share,
    Tree,
    Variables,
    all_weights,
    declare,
    select,
    shared_model,
)
from fl.blocks.distances import pairwise_distances
from fl.blocks.exchange import aggregate_nothing


class Outputs(TypedDict):
    """Outputs of a model for some samples.

    Attributes:
        features: Features, [n, d].
        model: Probabilities of the classes, [n, C].
    """

    features: Tensor
    model: Tensor


class LabelledOutputs(Outputs):
    """Outputs of a model for labelled samples.

    Attributes:
        y: Labels, int64 [n].
    """

    y: Tensor


class Memory(LabelledOutputs):
    """Memory of a client: its training samples.

    Attributes:
        lam: Its lambda, [].
    """

    lam: Tensor


@declare(
    "personal",
    title="kNN-Per",
    independent=True,
    starts="any",
    training={"rounds": 1, "local_epochs": 1},
)
class KNNPer:
    """A mixture of a shared model and nearest neighbours.

    Attributes:
        k: Number of neighbours.
        scale: Scale of distances in exp(-d / scale).
        lam: Lambda of all clients, from 0 to 1; null: for each client the best of 0, .1, ..., 1 on
            its validation samples (the smallest of equals; .5 without samples).
        distances: Squared distances between features: the `mean` over features, or `summed`.
        votes: Votes exp(-d / scale) of neighbours: as `shares` of their sum, or the `softmax` over
            classes of their sums by class.
    """

    k: Count = 10
    scale: Positive = 1.0
    lam: Share | None = None
    distances: Literal["mean", "summed"] = "mean"
    votes: Literal["shares", "softmax"] = "shares"

    def build(self, context: BuildContext) -> Method:
        """The stored model as it is, with a view that remembers samples."""
        steps = KNNPerSteps(self, context)
        view = Predictor(
            shared_model,
            steps.predict,
            steps.look,
            steps.build_memory,
            ("train", "val"),
            serves_absent_clients=True,
        )
        return Method(init, (), aggregate_nothing, {"personal": view})

    def neighbours(self, memory: LabelledOutputs, features: Tensor, classes: int) -> Tensor:
        """Probabilities [b, C] by the k nearest samples that are remembered, equation 9."""
        distances = pairwise_distances(features, memory["features"])
        if self.distances == "mean":
            distances = distances / features.shape[1]
        nearest = distances.topk(min(self.k, len(memory["y"])), largest=False)
        neighbour_probabilities = -nearest.values / self.scale
        weight = (
            neighbour_probabilities.exp()
            if self.votes == "softmax"
            else F.softmax(neighbour_probabilities, dim=-1)
        )
        votes = F.one_hot(memory["y"][nearest.indices], classes).to(weight.dtype)
        summed = (weight[..., None] * votes).sum(1)
        return F.softmax(summed, dim=-1) if self.votes == "softmax" else summed


@dataclass(frozen=True, eq=False)
class KNNPerSteps:
    """Functions of the view of kNN-Per.

    Attributes:
        options: The keys of the method.
        context: The context in which the method is built.
    """

    options: KNNPer
    context: BuildContext

    def features_and_predictions(self, variables: Variables, x: Inputs) -> Outputs:
        """Return features and probabilities of inputs."""
        output = self.context.network.eval(variables["params"], variables["buffers"], x)
        predicted = F.softmax(output.outputs, dim=-1)
        return {"features": output.features.flatten(1), "model": predicted}

    def look(self, variables: Variables, batch: Batch) -> LabelledOutputs:
        """Return what the memory needs of each sample."""
        return {**self.features_and_predictions(variables, batch["x"]), "y": batch["y"]}

    def build_memory(self, variables: Variables, values: Mapping[str, LabelledOutputs]) -> Tree:
        """Return a client's training samples and its lambda."""
        if "train" not in values:
            return {}
        memory = values["train"]
        if self.options.lam is not None or "val" not in values:
            lam = 0.5 if self.options.lam is None else self.options.lam
            return {**memory, "lam": memory["model"].new_tensor(lam)}
        val = values["val"]
        neighbour_probabilities = self.options.neighbours(
            memory, val["features"], self.context.classes
        )
        return {**memory, "lam": best_share(neighbour_probabilities, val["model"], val["y"])}

    def predict(self, variables: Variables, memory: Memory, x: Inputs) -> Tensor:
        """Return the logarithm of lambda p_knn + (1 - lambda) p, equation 8."""
        outputs = self.features_and_predictions(variables, x)
        mixed = outputs["model"]
        if memory:
            neighbour_probabilities = self.options.neighbours(
                memory, outputs["features"], self.context.classes
            )
            mixed = memory["lam"] * neighbour_probabilities + (1 - memory["lam"]) * mixed
        # Logarithms, as outputs are scores whose softmax are probabilities.
        return mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log()


def init(variables: Variables) -> tuple[Variables, Tree]:
    """Return the stored model."""
    return select(variables, all_weights), {}


def best_share(neighbour_probabilities: Tensor, model: Tensor, labels: Tensor) -> Tensor:
    """The share of neighbours, of 0, .1, ..., 1, that is right most often; the least of equals."""
    shares = torch.linspace(
        0, 1, 11, dtype=neighbour_probabilities.dtype, device=neighbour_probabilities.device
    )
    mixed = shares[:, None, None] * neighbour_probabilities + (1 - shares[:, None, None]) * model
    correct_counts = (mixed.argmax(-1) == labels).sum(-1)
    return shares[torch.nonzero(correct_counts == correct_counts.max())[0, 0]]
