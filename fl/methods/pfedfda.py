"""pFedFDA: heads follow from Gaussians of features, each client's between its own and the shared.

McLaughlin, Su. Personalized Federated Learning via Feature Distribution Adaptation. NeurIPS 2024.
arXiv:2411.00329.

Family: personal layers. Exchanged: body, a Gaussian of features. Local: a Gaussian of features.
Key: `beta`.

A head is the linear discriminant of class means and one covariance. Clients train the body under
the head of the shared Gaussian and their own class shares. Then they estimate the Gaussian of their
features, and send beta times it plus 1 - beta times the shared one; the server takes the mean.
Clients are scored with the newest body and Gaussian, estimated and mixed anew. Of 0, .1, ..., 1,
beta has the least loss of each half of the samples under the other half's Gaussian.

In the authors' code (cj-mclaughlin/pFedFDA, 73c7c40) L-BFGS finds beta, by default one for means
and one for the covariance. The first Gaussian is that code's. It adds a whole identity to each
client's covariance, and takes features while the body trains; here the trained body makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NotRequired, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    FedloomError,
    Method,
    Pass,
    Predictor,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    Share,
    Sweep,
    TrainingPass,
    Tree,
    Variables,
    Weights,
    declare,
    personal_model,
    recipe,
    rng,
    single_pass,
    trees,
    weights_in,
    weights_not_in,
)
from fl.blocks.anchors import class_sums, means_from_sums
from fl.blocks.linear_layers import head_outputs, head_parameters

PRIOR_FLOOR = 1e-4
"""Added to class shares, so that their logarithms are finite."""


class Gaussian(TypedDict):
    """Gaussian of features in each class, with one covariance for all classes.

    Attributes:
        means: Mean of each class, [C, d].
        covariance: Covariance of all classes, [d, d].
    """

    means: Tensor
    covariance: Tensor


class Moments(TypedDict):
    """Sums over samples; those of both halves of a client's samples have a first dimension 2.

    Attributes:
        counts: Number of samples of each class, [C].
        sums: Sum of features z by class, [C, d].
        products: Sum of z z', [d, d].
    """

    counts: Tensor
    sums: Tensor
    products: Tensor


class Head(TypedDict):
    """Linear classifier, or a stack of several.

    Attributes:
        weight: Weight, [..., C, d].
        bias: Bias, [..., C].
    """

    weight: Tensor
    bias: Tensor


class PFedFDAServer(RecipeServer):
    """State of the server.

    Attributes:
        gaussian: Mean of the Gaussians that clients sent.
    """

    gaussian: Gaussian


class PFedFDAClient(RecipeClient):
    """State of a client, which has these entries between sweeps of a round alone.

    Attributes:
        moments: Moments of both halves of its samples.
        heads: Heads of each half for all shares beta, ``weight`` [2, g, C, d].
    """

    moments: NotRequired[Moments]
    heads: NotRequired[Head]


class PFedFDAUpload(RecipeUpload):
    """Upload of a client.

    Attributes:
        gaussian: Its own Gaussian, mixed with the server's.
    """

    gaussian: Gaussian


class PFedFDAModel(Variables):
    """What is evaluated: the client's model, from which its head follows.

    Attributes:
        gaussian: The server's Gaussian.
        counts: The client's samples by class, [C].
    """

    gaussian: Gaussian
    counts: Tensor


@declare("personal", title="pFedFDA")
class PFedFDA:
    """FedAvg of the body and of a Gaussian of features.

    Attributes:
        beta: Share of a client's own Gaussian; null: chosen by each client.
        shrinkage: Share of a multiple of the identity in covariances (the authors: .0001).
    """

    beta: Share | None = None
    shrinkage: Share = 1e-4

    def build(self, context: BuildContext) -> Method:
        """Return training under the head, a sweep for moments of both halves, one for beta."""
        head = context.network.head
        training = (TrainingPass(weights_not_in(head)),)
        base = recipe(context, local=weights_in(head), passes=training)
        steps = PFedFDASteps(base, context, GaussianMixing(self.beta, self.shrinkage))
        passes: tuple[Pass | Sweep, ...] = (
            replace(single_pass(base), begin=steps.begin),
            Sweep(steps.look_for_moments, steps.keep_moments),
            Sweep(steps.try_heads, steps.send_mixture),
        )
        view = Predictor(steps.own_model, steps.predict, steps.look_at_samples, steps.own_head)
        return replace(base, init=steps.init, passes=passes, views={"personal": view})


@dataclass(frozen=True, eq=False)
class PFedFDASteps:
    """Functions of the passes, the sweeps and the view of pFedFDA.

    Attributes:
        base: FedAvg of the body, whose clients keep their heads.
        context: The context in which the method is built.
        rule: Rule by which a client mixes Gaussians and makes heads of them.
    """

    base: Recipe
    context: BuildContext
    rule: GaussianMixing

    def init(self, variables: Variables) -> tuple[PFedFDAServer, RecipeClient]:
        """Return FedAvg's states, and a Gaussian with random means."""
        server, client = self.base.init(variables)
        head = head_parameters(self.context.network, variables["params"])
        gaussian = initial_gaussian(head, rng.torch_seed(self.context.seed, "pfedfda"))
        return {**server, "gaussian": gaussian}, client

    def begin(self, server: PFedFDAServer, client: PFedFDAClient) -> RecipeWork:
        """Begin training of the body, under the head of the server's Gaussian."""
        return single_pass(self.base).begin(server, self.with_head(server, client))

    def with_head(self, server: PFedFDAServer, client: PFedFDAClient) -> PFedFDAClient:
        """Return the client with the head of the server's Gaussian and its own class shares."""
        params, network = client["params"], self.context.network
        head: Tree = self.rule.head(server["gaussian"], client["counts"])
        layer = {
            name: head[name.rpartition(".")[2]].to(params[name])
            for name in network.names["params"]
            if name in network.head
        }
        return {**client, "params": layer}

    def features(self, variables: Variables, batch: Batch) -> Tensor:
        """Return features in evaluation mode, [b, d]."""
        network = self.context.network
        output = network.eval(variables["params"], variables["buffers"], batch["x"])
        return output.features.flatten(1)

    def look_for_moments(
        self, server: PFedFDAServer, client: PFedFDAClient, upload: RecipeUpload, batch: Batch
    ) -> Moments:
        """Return the moments of both halves, with the trained body."""
        z = self.features(personal_model(upload, client), batch)
        return half_moments(z, batch["y"], batch["weight"], self.context.classes)

    def keep_moments(
        self,
        server: PFedFDAServer,
        client: PFedFDAClient,
        upload: RecipeUpload,
        totals: Moments,
    ) -> tuple[PFedFDAClient, RecipeUpload]:
        """Keep the moments, and make heads of them."""
        heads = self.rule.heads(server["gaussian"], totals, client["counts"])
        return {**client, "moments": totals, "heads": heads}, upload

    def try_heads(
        self, server: PFedFDAServer, client: PFedFDAClient, upload: RecipeUpload, batch: Batch
    ) -> Tree:
        """Return the losses of each half under the heads of the other one."""
        z = self.features(personal_model(upload, client), batch)
        return {"losses": held_out_losses(client["heads"], z, batch["y"], batch["weight"])}

    def send_mixture(
        self, server: PFedFDAServer, client: PFedFDAClient, upload: RecipeUpload, totals: Tree
    ) -> tuple[Tree, PFedFDAUpload]:
        """Upload the mixture of the client's Gaussian and the server's."""
        common = server["gaussian"]
        mixed = self.rule.mixture(common, client["moments"], totals["losses"])
        gaussian = trees.apply(lambda leaf, example: leaf.to(example), mixed, common)
        state = {key: leaf for key, leaf in client.items() if key not in ("moments", "heads")}
        return state, {**upload, "gaussian": gaussian}

    def own_model(self, server: PFedFDAServer, client: PFedFDAClient) -> PFedFDAModel:
        """Return the server's body with the head of its Gaussian, as a view."""
        model = personal_model(server, self.with_head(server, client))
        return {**model, "gaussian": server["gaussian"], "counts": client["counts"]}

    def look_at_samples(self, model: PFedFDAModel, batch: Batch) -> Tree:
        """Return features and labels of a client's samples."""
        return {"features": self.features(model, batch), "labels": batch["y"]}

    def own_head(self, model: PFedFDAModel, values: Mapping[str, Tree]) -> Tree:
        """Return the client's head from its samples, if it has some."""
        if "train" not in values:
            return {}
        return self.rule.adapted_head(model["gaussian"], model["counts"], **values["train"])

    def predict(self, model: PFedFDAModel, memory: Tree, x: Tensor) -> Tensor:
        """Return the outputs of the client's own head; of the model's without one."""
        output = self.context.network.eval(model["params"], model["buffers"], x)
        if not memory:
            return output.outputs
        return head_outputs(memory, output.features.double()).to(output.outputs)


def initial_gaussian(head: Weights, seed: int) -> Gaussian:
    """Return class means that are uniform between 0 and 1, and the identity as covariance.

    Args:
        head: A classifier with the shape, precision and device of the result.
        seed: Seed of the means.

    Raises:
        FedloomError: If the classifier has no bias, in which class shares could be.
    """
    if "bias" not in head:
        raise FedloomError(
            "the head of the model has no bias", advice="choose a model whose last layer has one"
        )
    example = head["weight"]
    generator = torch.Generator().manual_seed(seed)
    centres = torch.rand(example.shape, generator=generator, dtype=torch.float64)
    identity = torch.eye(example.shape[1], dtype=centres.dtype)
    return {"means": centres.to(example), "covariance": identity.to(example)}


def gaussian_of(moments: Moments, absent_means: Tensor) -> Gaussian:
    """Return the Gaussian of samples: their class means, and the covariance around these.

    Args:
        moments: Moments of the samples.
        absent_means: Means [C, d] for classes without a sample.
    """
    counts = moments["counts"]
    centres, _ = means_from_sums(moments["sums"], counts)
    scatter = moments["products"] - (centres * counts[:, None]).T @ centres
    return {
        "means": torch.where((counts > 0)[:, None], centres, absent_means),
        "covariance": scatter / (counts.sum() - 1).clamp(min=1),
    }


def interpolate(share: Tensor, first: Gaussian, second: Gaussian) -> Gaussian:
    """Return share times the first Gaussian plus 1 - share times the second.

    Args:
        share: A scalar, or several shares [g, 1, 1], which make a stack of Gaussians.
        first: A Gaussian.
        second: Another one.
    """
    return trees.apply(lambda a, b: share * a + (1 - share) * b, first, second)


def discriminant(gaussian: Gaussian, priors: Tensor, shrinkage: float) -> Head:
    """Return the linear classifier of a Gaussian.

    w_c = S^-1 m_c and b_c = log pi_c - m_c' w_c / 2, with S = (1 - e) Sigma + e tr(Sigma) / d I.
    Fisher. The Use of Multiple Measurements in Taxonomic Problems. Annals of Eugenics 1936.

    Args:
        gaussian: A Gaussian, or a stack of Gaussians.
        priors: The class priors pi, [C].
        shrinkage: The share e.
    """
    centres, covariance = gaussian["means"].double(), gaussian["covariance"].double()
    variance = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    # A floor, so that features which do not vary at all have an inverse.
    level = variance.clamp(min=torch.finfo(variance.dtype).eps)
    eye = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    shrunk = (1 - shrinkage) * covariance + shrinkage * level * eye
    weight = torch.linalg.solve(shrunk, centres.mT).mT
    return {"weight": weight, "bias": priors.double().log() - (centres * weight).sum(-1) / 2}


def half_moments(features: Tensor, labels: Tensor, weight: Tensor, classes: int) -> Moments:
    """Return the moments of both halves of a batch, leaves [2, ...].

    Args:
        features: Features z, [b, d].
        labels: The class of each sample, [b].
        weight: The weight of each sample, [b].
        classes: Number of classes, C.
    """
    z = features.double()
    moments: list[Moments] = []
    for half_weight in _half_weights(weight):
        sums, counts = class_sums(z, labels, half_weight, classes)
        products = (z * half_weight[:, None]).T @ z
        moments.append({"counts": counts, "sums": sums, "products": products})
    return trees.stack(moments)


def held_out_losses(heads: Head, features: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Return the summed cross-entropy of each half under the other half's classifiers, [g].

    Args:
        heads: Classifiers, see `GaussianMixing.heads`.
        features: Features of a batch, [b, d].
        labels: The class of each sample, [b].
        weight: The weight of each sample, [b].
    """
    z, losses = features.double(), []
    for index, half_weight in enumerate(_half_weights(weight)):
        head_weight, bias = heads["weight"][1 - index], heads["bias"][1 - index]
        log_p = F.log_softmax(z @ head_weight.mT + bias[:, None], dim=-1)
        columns = labels.expand(len(bias), -1)[..., None]
        losses.append(-log_p.gather(-1, columns)[..., 0] @ half_weight)
    return losses[0] + losses[1]


def _half_weights(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of a batch [b] for each half, 0 for samples of the other one."""
    is_odd = torch.arange(len(weight), device=weight.device) % 2
    doubled = weight.double()
    return doubled * (1 - is_odd), doubled * is_odd


@dataclass(frozen=True)
class GaussianMixing:
    """Rule by which a client mixes its own Gaussian with a common one, and makes a head of it.

    The samples of a client at even and those at odd positions are its two halves. Results are in
    double precision.

    Attributes:
        beta: Share of the client's own Gaussian; None: of 0, .1, ..., 1 the one with the least loss
            of each half of the client's samples under the Gaussian of the other half.
        shrinkage: See `discriminant`.
    """

    beta: float | None
    shrinkage: float

    def head(self, gaussian: Gaussian, counts: Tensor) -> Head:
        """Return the discriminant of a Gaussian, or of a stack, for class counts [C]."""
        shares = counts.double() / counts.sum().clamp(min=1) + PRIOR_FLOOR
        return discriminant(gaussian, shares / shares.sum(), self.shrinkage)

    def heads(self, common: Gaussian, moments: Moments, counts: Tensor) -> Head:
        """Return heads of each half for all shares, ``weight`` [2, g, C, d].

        Args:
            common: The common Gaussian.
            moments: Moments of both halves.
            counts: The client's samples by class, [C].
        """
        shares = self._shares(moments["counts"])[:, None, None]
        heads = []
        for index in (0, 1):
            gaussian = gaussian_of(trees.take(moments, index), common["means"])
            heads.append(self.head(interpolate(shares, gaussian, common), counts))
        return trees.stack(heads)

    def mixture(self, common: Gaussian, moments: Moments, losses: Tensor) -> Gaussian:
        """Return the client's Gaussian; the common one for a client of fewer than two samples.

        Args:
            common: The common Gaussian.
            moments: Moments of both halves.
            losses: Losses of all shares, see `held_out_losses`, [g].
        """
        total = trees.apply(lambda leaf: leaf.sum(0), moments)
        beta = self._shares(losses).gather(0, losses.argmin().reshape(1))
        beta = beta * (total["counts"].sum() > 1)
        return interpolate(beta, gaussian_of(total, common["means"]), common)

    def adapted_head(
        self, common: Gaussian, counts: Tensor, features: Tensor, labels: Tensor
    ) -> Head:
        """Return a client's head, from all of its samples at once.

        Args:
            common: The common Gaussian.
            counts: The client's samples by class, [C].
            features: Features of its samples, [n, d].
            labels: Their classes, [n].
        """
        samples = (features, labels, torch.ones_like(labels))
        moments = half_moments(*samples, len(counts))
        losses = held_out_losses(self.heads(common, moments, counts), *samples)
        return self.head(self.mixture(common, moments, losses), counts)

    def _shares(self, example: Tensor) -> Tensor:
        shares = torch.linspace(0, 1, 11, dtype=torch.float64, device=example.device)
        return shares if self.beta is None else torch.full_like(shares[:1], self.beta)
