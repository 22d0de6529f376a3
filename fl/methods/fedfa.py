"""FedFA: features are augmented by how much they vary over clients, and held to one histogram.

Zhou, Konukoglu. FedFA: Federated Feature Augmentation. ICLR 2023. arXiv:2301.12995; Zhou, Yuan,
Wang, Konukoglu. Federated Feature Augmentation and Alignment. IEEE TPAMI 2024.

Family: features. Exchanged: model, statistics of features. Local: nothing. Key: `layers`.

As it stands it is FedFA^l. The papers' other methods are FedFA-C (``augment: batch``: what is left
where clients tell each other nothing of their features), FedFA-R (``augment: random``: every
channel's statistics are moved alike), FedFA^h (``augment: none, histograms: true``) and FedFA+
(``histograms: true``).

A variance over clients is that of each channel, as in the papers; the released code takes one
variance over clients and channels together, so that every channel weighs 1. As in that code and not
in the papers, variances over space and batch are unbiased, and running means move only when a batch
is augmented. Here models are averaged by samples; in the code every client counts alike
(`weighting: uniform`).

Of the histograms no code is released, and we had slides of the paper: what they leave open is
decided here. Features are what goes into the classifier; of a model without one, such as U-Net,
they are what its last block gives, and each pixel counts as a sample. The logistic function brings
them into the range of the bins. The soft bins and their temperature are those of Eastwood et al.
(ICLR 2022). The divergence is the mean over channels, where the slides' notation adds channels up;
lambda takes in the constant. The histogram of all clients is their plain mean (weighted by samples
where the task counts no classes), from the round before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from fl.api import (
    Batch,
    Bound,
    BuildContext,
    FedloomError,
    Forward,
    Inputs,
    Method,
    NonNegative,
    Output,
    Pass,
    Positive,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    Share,
    Sweep,
    TappedTerm,
    Term,
    Tree,
    Variables,
    WeightedAverage,
    declare,
    recipe,
    task_loss,
    training_passes,
    trees,
)
from fl.blocks.dummy_inputs import zero_inputs
from fl.blocks.feature_augmentation import (
    Fusion,
    channel_counts,
    federated_augmentation,
    random_augmentation,
    with_exchanged_statistics,
)
from fl.blocks.feature_statistics import augment, channel_moments, restyle
from fl.blocks.reweighting import reweighted_mean, unweighted_upload

MIN_SAMPLES = 2
"""The smallest number of samples that have a histogram."""
SHARE_EPS = 1e-6
"""A number added to the shares of a histogram, so that an empty bin has a logarithm."""


class HistogramServer(RecipeServer):
    """State of the server.

    Attributes:
        histogram: Histogram of features over all clients, [channels, bins]; zeros before the first
            round.
    """

    histogram: Tensor


class HistogramUpload(RecipeUpload):
    """Upload of a client.

    Attributes:
        histogram: Its histogram, as `fl.blocks.reweighting.unweighted_upload` makes it.
    """

    histogram: Tree


@declare("global", title="FedFA^l", tasks="any")
class FedFA:
    """FedAvg with augmentation of channel statistics.

    Attributes:
        augment: Variance of the new channel statistics: over `clients`, over the `batch`, or the
            same for all (`random`); `none` leaves features unchanged.
        layers: Names of the model's layers whose features, with height and width, are augmented.
        p: Probability that a batch is augmented, drawn for each layer.
        statistics_momentum: Momentum of the running means of statistics, for `clients`.
        fusion: Factor of a channel's variance: 1 plus its weight among channels (`adaptive`), or 1
            plus its variance over clients (`direct`; the papers give no formula for it).
        factor: Number of standard deviations over the batch by which a statistic moves, for `batch`
            (an earlier version of the authors' code: 0.5; FedFA without other clients: 1).
        sd: Standard deviation of the normal noise on statistics, for `random` (an earlier version
            of the authors' code: 0.3).
        histograms: Whether a loss term keeps features near their histogram over all clients.
        lam: Weight lambda of the divergence between histograms.
        bins: Number of bins of a channel's histogram.
        tau: Softness of the edges of bins, in the range from 0 to 1.
    """

    augment: Literal["clients", "batch", "random", "none"] = "clients"
    layers: tuple[str, ...] = ()
    p: Share = 0.5
    statistics_momentum: Share = 0.99
    fusion: Fusion = "adaptive"
    factor: NonNegative = 0.5
    sd: NonNegative = 0.3
    histograms: bool = False
    lam: NonNegative = 0.1
    bins: Annotated[int, Bound(low=2)] = 8
    tau: Positive = 0.01

    def build(self, context: BuildContext) -> Method:
        """FedAvg whose clients augment features, align them, and send the statistics of both."""
        if self.augment == "clients":
            context = federated_augmentation(context, self.layers, self.p, self.statistics_momentum)
        elif self.augment != "none":
            change = self.within_batch if self.augment == "batch" else self.at_random
            context = random_augmentation(context, self.layers, self.p, change)
        terms: list[Term] = [task_loss]
        if self.histograms:
            check_batch_size(context, "fedfa")
            terms.append(alignment_term(context, self.lam, self.bins, self.tau))
        method = recipe(context, terms=tuple(terms))
        if self.augment == "clients":
            method = with_exchanged_statistics(method, context, self.layers, self.fusion)
        return with_histograms(method, context, self.bins, self.tau) if self.histograms else method

    def within_batch(self, x: Tensor, noise: Tensor, batch: Batch) -> Tensor:
        """Statistics of features [b, c, h, w] moved by ``factor`` deviations over the batch."""
        gamma = x.new_full((x.shape[1],), self.factor**2 - 1)
        return augment(x, noise[0], noise[1], gamma, gamma, weight=batch["weight"])

    def at_random(self, x: Tensor, noise: Tensor, batch: Batch) -> Tensor:
        """Statistics of features [b, c, h, w] with noise of deviation ``sd``."""
        mean, sd = channel_moments(x)
        return restyle(x, mean, sd, mean + self.sd * noise[0], sd + self.sd * noise[1])


def check_batch_size(context: BuildContext, method: str) -> None:
    """Raise `FedloomError` for batches that are too small to have a histogram."""
    if (size := context.training.batch_size) < MIN_SAMPLES:
        raise FedloomError(
            f"{method}: batch_size is {size}, but one sample has no meaningful histogram",
            f"at least {MIN_SAMPLES}",
        )


class AlignedFeatures:
    """Aligned features of passes, [b, c, ...].

    They are the classifier's input; in a model without a classifier, the output of its last block.

    Attributes:
        network: A view of the context's network, which taps the block.
        taps: The name of the block; empty in a model with a classifier.

    Raises:
        FedloomError: If the model has neither, or if the block's output has not the shape of
            images.
    """

    def __init__(self, context: BuildContext) -> None:
        self.network = context.network.view()
        sizes = (
            {} if self.network.head_layers else channel_counts(context, self.network.blocks[-1:])
        )
        self.taps, self._sizes = tuple(sizes), sizes
        self.network.tap(self.taps)

    def select(self, output: Output) -> Tensor:
        """Return the aligned features of a pass's output."""
        if not self.taps:
            return output.features
        [(layer, size)] = self._sizes.items()
        tap = output.taps[layer]
        return tap.reshape(len(tap), size, -1)

    def evaluate(self, variables: Variables, x: Inputs) -> Tensor:
        """Return the aligned features of inputs in evaluation mode."""
        return self.select(self.network.eval(variables["params"], variables["buffers"], x))


def alignment_term(context: BuildContext, lam: float, bins: int, tau: float) -> Term:
    """Return lam times the symmetric KL of the batch's and the server's histogram, a loss term.

    It is the mean over channels; 0 for a batch with fewer than two weighted samples.

    Args:
        context: The context in which the method is built.
        lam: The weight of the term.
        bins: The number of bins, see `soft_bins`.
        tau: The temperature of the bins.
    """
    aligned = AlignedFeatures(context)

    def term(forward: Forward) -> Tensor:
        server: HistogramServer = forward.server
        target = server["histogram"]
        total, count = histogram_sums(
            aligned.select(forward.output), forward.batch["weight"], bins, tau
        )
        divergence = symmetric_kl(total / count.clamp(min=1), target).mean()
        return torch.where((count >= MIN_SAMPLES) & (target.sum() > 0), lam * divergence, 0)

    return TappedTerm(term, aligned.taps)


def with_histograms(base: Recipe, context: BuildContext, bins: int, tau: float) -> Recipe:
    """Let clients upload histograms of their features, for the term `alignment_term`.

    The histograms are those of the model that the client just trained, in evaluation mode. A client
    with fewer than two samples uploads the histogram that it received.

    Args:
        base: The method to extend.
        context: The context in which it was built.
        bins: The number of bins.
        tau: The temperature of the bins.
    """
    steps = HistogramSteps(base, context, AlignedFeatures(context).evaluate, bins, tau)
    passes: tuple[Pass | Sweep, ...] = (*training_passes(base), Sweep(steps.look, steps.end))
    aggregate = WeightedAverage(steps.aggregate)
    return replace(base, init=steps.init, passes=passes, aggregate=aggregate)


@dataclass(frozen=True, eq=False)
class HistogramSteps:
    """Functions of the method that `with_histograms` returns.

    Attributes:
        base: The method.
        context: The context in which the method is built.
        features: A function that returns the features of inputs in evaluation mode.
        bins: The number of bins.
        tau: The temperature of the bins.
    """

    base: Recipe
    context: BuildContext
    features: Callable[[Variables, Inputs], Tensor]
    bins: int
    tau: float

    def init(self, variables: Variables) -> tuple[HistogramServer, RecipeClient]:
        """Return states in which the histogram is 0."""
        server, client = self.base.init(variables)
        example = trees.leaves(variables["params"])[0]
        with torch.no_grad():
            channels = self.features(variables, zero_inputs(self.context, 1, example)).shape[1]
        return {**server, "histogram": example.new_zeros((channels, self.bins))}, client

    def look(self, server: Tree, client: RecipeClient, upload: RecipeUpload, batch: Batch) -> Tree:
        """Return the histogram of a batch, as sums."""
        total, count = histogram_sums(
            self.features(upload, batch["x"]), batch["weight"], self.bins, self.tau
        )
        return {"sums": total, "count": count}

    def end(
        self, server: HistogramServer, client: RecipeClient, upload: RecipeUpload, totals: Tree
    ) -> tuple[RecipeClient, HistogramUpload]:
        """Upload the histogram."""
        histogram = totals["sums"] / totals["count"].clamp(min=1)
        is_large = totals["count"] >= MIN_SAMPLES
        histogram = torch.where(is_large, histogram, server["histogram"])
        sent = unweighted_upload({"own": histogram}, client["counts"].sum(), self.context.training)
        return client, {**upload, "histogram": sent}

    def aggregate(
        self, server: HistogramServer, clients: RecipeClient, uploads: HistogramUpload, n: Tensor
    ) -> tuple[HistogramServer, RecipeClient]:
        """Average the models, and the histograms."""
        models = {key: leaf for key, leaf in uploads.items() if key != "histogram"}
        mean, clients = self.base.aggregate(server, clients, models, n)
        histogram = reweighted_mean(trees.mean(uploads["histogram"], n))["own"]
        return {**mean, "histogram": histogram}, clients


def positions_as_rows(features: Tensor) -> Tensor:
    """Reshape features [b, c, ...] to [b, positions, c]: each pixel of a map counts as a sample."""
    return features.flatten(2).movedim(1, -1) if features.dim() > 2 else features[:, None]


def soft_bins(values: Tensor, bins: int, tau: float) -> Tensor:
    """Share of each value in each bin, [..., bins]; the shares add up to 1.

    The logistic function brings values into the range from 0 to 1, which the bins divide equally.
    The shares are softmax((l u - sum_{j<l} j / bins) / tau), l = 1, 2, ...; as tau tends to 0, the
    edges of bins become sharp.

    Yang, Garcia Morillo, Hospedales. Deep Neural Decision Trees. 2018. arXiv:1806.06988. Features
    are aligned by such histograms in Eastwood, Mason, Williams, Schölkopf. Source-Free Adaptation
    to Measurement Shift via Bottom-Up Feature Restoration. ICLR 2022. arXiv:2107.05446.
    """
    u = values.sigmoid()[..., None]
    number = torch.arange(bins, dtype=values.dtype, device=values.device)
    return (((number + 1) * u - (number / bins).cumsum(-1)) / tau).softmax(-1)


def histogram_sums(
    features: Tensor, weight: Tensor, bins: int, tau: float
) -> tuple[Tensor, Tensor]:
    """Sum `soft_bins` over samples and positions, [c, bins], and the weights of samples, a scalar.

    Args:
        features: Features, [b, c, ...].
        weight: The weight of each sample, [b].
        bins: The number of bins.
        tau: The temperature of the bins.
    """
    binned = soft_bins(positions_as_rows(features), bins, tau).mean(1)
    weight = weight.to(features.dtype)
    return torch.einsum("b,bcl->cl", weight, binned), weight.sum()


def symmetric_kl(p: Tensor, q: Tensor) -> Tensor:
    """Symmetric divergence (KL(p || q) + KL(q || p)) / 2 of histograms [..., bins]: [...]."""
    log_ratio = (p + SHARE_EPS).log() - (q + SHARE_EPS).log()
    return ((p - q) * log_ratio).sum(-1) / 2
