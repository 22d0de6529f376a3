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
    """Gaussian of features that has the same covariance in every class.

    Attributes:
        means: Means of the classes, [C, d].
        covariance: [d, d].
    """

    means: Tensor
    covariance: Tensor


class Moments(TypedDict):
    """Sums over samples, in double precision.

    Attributes:
        counts: Of samples by class, [C].
        sums: Of features by class, [C, d].
        products: Of z z', [d, d].
    """

    counts: Tensor
    sums: Tensor
    products: Tensor


class PFedFDAServer(RecipeServer):
    """State of the server.

    Attributes:
        gaussian: The common Gaussian.
    """

    gaussian: Gaussian


class PFedFDAClient(RecipeClient):
    """State of a client. What it adds is there between its two sweeps alone.

    Attributes:
        moments: Moments of both halves of its samples, leaves [2, ...].
        heads: Heads of each half for g shares: ``weight`` [2, g, C, d] and ``bias`` [2, g, C].
    """

    moments: NotRequired[Moments]
    heads: NotRequired[Weights]


class PFedFDAUpload(RecipeUpload):
    """Upload of a client; ``params`` has the body.

    Attributes:
        gaussian: Its Gaussian.
    """

    gaussian: Gaussian


class PFedFDAModel(Variables):
    """Model of a client that is scored.

    Attributes:
        gaussian: The common Gaussian.
        counts: The client's training samples by class, [C].
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
        passes = (
            replace(single_pass(base), begin=steps.begin),
            Sweep(steps.look, steps.keep_moments),
            Sweep(steps.try_heads, steps.send_gaussian),
        )
        view = Predictor(steps.personal, steps.predict, steps.look_at_samples, steps.own_head)
        return replace(base, init=steps.init, passes=passes, views={"personal": view})


@dataclass(frozen=True, eq=False)
class PFedFDASteps:
    """Functions of pFedFDA's passes and of its view.

    Attributes:
        base: FedAvg of the body.
        context: The context in which the method is built.
        rule: Rule by which a client mixes Gaussians.
    """

    base: Recipe
    context: BuildContext
    rule: GaussianMixing

    def init(self, variables: Variables) -> tuple[PFedFDAServer, RecipeClient]:
        """Return FedAvg's states and the first Gaussian."""
        server, client = self.base.init(variables)
        head = head_parameters(self.context.network, variables["params"])
        seed = rng.torch_seed(self.context.seed, "pfedfda")
        return {**server, "gaussian": initial_gaussian(head, seed)}, client

    def with_head(self, server: PFedFDAServer, client: PFedFDAClient) -> PFedFDAClient:
        """Return the client's state with the head that the common Gaussian makes."""
        network, params = self.context.network, client["params"]
        head = self.rule.head(server["gaussian"], client["counts"])
        names = [name for name in network.names["params"] if name in network.head]
        layer = {name: head[name.rpartition(".")[2]].to(params[name]) for name in names}
        return {**client, "params": layer}

    def begin(self, server: PFedFDAServer, client: PFedFDAClient) -> RecipeWork:
        """Begin to train the body under that head."""
        return single_pass(self.base).begin(server, self.with_head(server, client))

    def features(self, variables: Variables, batch: Batch) -> Tensor:
        """Return features in evaluation mode, [b, d]."""
        output = self.context.network.eval(variables["params"], variables["buffers"], batch["x"])
        return output.features.flatten(1)

    def look(
        self, server: PFedFDAServer, client: PFedFDAClient, upload: RecipeUpload, batch: Batch
    ) -> Moments:
        """Return moments of both halves by the trained body."""
        z = self.features(personal_model(upload, client), batch)
        return half_moments(z, batch["y"], batch["weight"], self.context.classes)

    def keep_moments(
        self, server: PFedFDAServer, client: PFedFDAClient, upload: RecipeUpload, totals: Moments
    ) -> tuple[PFedFDAClient, RecipeUpload]:
        """Keep the moments, and the heads that are tried in the next sweep."""
        heads = self.rule.heads(server["gaussian"], totals, client["counts"])
        return {**client, "moments": totals, "heads": heads}, upload

    def try_heads(
        self, server: PFedFDAServer, client: PFedFDAClient, upload: RecipeUpload, batch: Batch
    ) -> Tree:
        """Return the loss of each half under the other half's heads."""
        z = self.features(personal_model(upload, client), batch)
        return {"losses": held_out_losses(client["heads"], z, batch["y"], batch["weight"])}

    def send_gaussian(
        self, server: PFedFDAServer, client: PFedFDAClient, upload: RecipeUpload, totals: Tree
    ) -> tuple[PFedFDAClient, PFedFDAUpload]:
        """Upload the body and the client's Gaussian."""
        common = server["gaussian"]
        mixed = self.rule.mixture(common, client["moments"], totals["losses"])
        gaussian = trees.apply(lambda leaf, example: leaf.to(example), mixed, common)
        state = client.copy()
        del state["moments"], state["heads"]
        return state, {**upload, "gaussian": gaussian}

    def personal(self, server: PFedFDAServer, client: PFedFDAClient) -> PFedFDAModel:
        """Return the shared body with the client's head, and what its own head is made of."""
        model = personal_model(server, self.with_head(server, client))
        return {**model, "gaussian": server["gaussian"], "counts": client["counts"]}

    def look_at_samples(self, variables: PFedFDAModel, batch: Batch) -> Tree:
        """Return features and labels."""
        return {"features": self.features(variables, batch), "labels": batch["y"]}

    def own_head(self, variables: PFedFDAModel, values: Mapping[str, Tree]) -> Weights:
        """Return the head of the client's training samples; {} without samples."""
        if "train" not in values:
            return {}
        return self.rule.adapted_head(variables["gaussian"], variables["counts"], **values["train"])

    def predict(self, variables: PFedFDAModel, memory: Weights, x: Tensor) -> Tensor:
        """Return the outputs of the client's own head, if it has one."""
        output = self.context.network.eval(variables["params"], variables["buffers"], x)
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


def discriminant(gaussian: Gaussian, priors: Tensor, shrinkage: float) -> Weights:
    """Return the linear classifier of a Gaussian: ``weight`` [..., C, d], ``bias`` [..., C].

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


def held_out_losses(heads: Weights, features: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
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

    def head(self, gaussian: Gaussian, counts: Tensor) -> Weights:
        """Return the discriminant of a Gaussian, or of a stack, for class counts [C]."""
        shares = counts.double() / counts.sum().clamp(min=1) + PRIOR_FLOOR
        return discriminant(gaussian, shares / shares.sum(), self.shrinkage)

    def heads(self, common: Gaussian, moments: Moments, counts: Tensor) -> Weights:
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
    ) -> Weights:
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
