"""FedFA^h: features are aligned with their histograms over all clients.

See `fl.blocks.histograms` for the paper.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fl.api import (
    COUNTS,
    Batch,
    BuildContext,
    FedloomError,
    Forward,
    Inputs,
    Method,
    Output,
    Pass,
    Sweep,
    TappedTerm,
    Term,
    Tree,
    WeightedAverage,
    training_passes,
    trees,
)
from fl.blocks.dummy_inputs import zero_inputs
from fl.blocks.feature_augmentation import channel_counts
from fl.blocks.histograms import histogram_sums, symmetric_kl
from fl.blocks.reweighting import reweighted_mean, unweighted_upload

HISTOGRAM = "histogram"
"""Key in the server's tree: [channels, bins] over all clients; zeros before the first round."""

MIN_SAMPLES = 2
"""The smallest number of samples that have a histogram."""


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

    def evaluate(self, variables: Tree, x: Inputs) -> Tensor:
        """Return the aligned features of inputs in evaluation mode."""
        return self.select(self.network.eval(variables["params"], variables["buffers"], x))


def alignment_term(context: BuildContext, lam: float, bins: int, tau: float) -> Term:
    """Return lam times the symmetric KL of the batch's and the server's histogram, a loss term.

    It is the mean over channels; 0 for a batch with fewer than two weighted samples.

    Args:
        context: The context in which the method is built.
        lam: The weight of the term.
        bins: The number of bins, see `fl.blocks.histograms.soft_bins`.
        tau: The temperature of the bins.
    """
    aligned = AlignedFeatures(context)

    def term(forward: Forward) -> Tensor:
        target = forward.shared[HISTOGRAM]
        total, count = histogram_sums(
            aligned.select(forward.output), forward.batch["weight"], bins, tau
        )
        divergence = symmetric_kl(total / count.clamp(min=1), target).mean()
        return torch.where((count >= MIN_SAMPLES) & (target.sum() > 0), lam * divergence, 0)

    return TappedTerm(term, aligned.taps)


def with_histograms(base: Method, context: BuildContext, bins: int, tau: float) -> Method:
    """Let clients upload histograms of their features, for the term `alignment_term`.

    The histograms are those of the model that the client just trained, in evaluation mode. A client
    with fewer than two samples uploads the histogram that it received.

    Args:
        base: The method to extend.
        context: The context in which it was built.
        bins: The number of bins.
        tau: The temperature of the bins.
    """
    features = AlignedFeatures(context).evaluate

    def init(variables: Tree) -> tuple[Tree, Tree]:
        server, client = base.init(variables)
        example = trees.leaves(variables["params"])[0]
        with torch.no_grad():
            example_features = features(variables, zero_inputs(context, 1, example))
        return {**server, HISTOGRAM: example.new_zeros((example_features.shape[1], bins))}, client

    def look(server: Tree, client: Tree, upload: Tree, batch: Batch) -> Tree:
        total, count = histogram_sums(features(upload, batch["x"]), batch["weight"], bins, tau)
        return {"sums": total, "count": count}

    def end(server: Tree, client: Tree, upload: Tree, totals: Tree) -> tuple[Tree, Tree]:
        histogram = totals["sums"] / totals["count"].clamp(min=1)
        local_histogram = torch.where(totals["count"] >= MIN_SAMPLES, histogram, server[HISTOGRAM])
        samples = client[COUNTS].sum()
        shared_histogram = unweighted_upload({"own": local_histogram}, samples, context.training)
        return dict(client), {**upload, HISTOGRAM: shared_histogram}

    def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
        models = {key: leaf for key, leaf in uploads.items() if key != HISTOGRAM}
        mean, client_states = base.aggregate(server, clients, models, n)
        return {
            **mean,
            HISTOGRAM: reweighted_mean(trees.mean(uploads[HISTOGRAM], n))["own"],
        }, client_states

    passes: tuple[Pass | Sweep, ...] = (*training_passes(base), Sweep(look, end))
    return replace(base, init=init, passes=passes, aggregate=WeightedAverage(aggregate))
