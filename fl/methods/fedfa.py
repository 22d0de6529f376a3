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

from typing import Annotated, Literal

from torch import Tensor

from fl.api import (
    Batch,
    Bound,
    BuildContext,
    Method,
    NonNegative,
    Positive,
    Share,
    Term,
    declare,
    recipe,
    task_loss,
)
from fl.blocks.feature_augmentation import (
    Fusion,
    federated_augmentation,
    random_augmentation,
    with_exchanged_statistics,
)
from fl.blocks.feature_statistics import augment, channel_moments, restyle
from fl.blocks.histogram_alignment import alignment_term, check_batch_size, with_histograms


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
