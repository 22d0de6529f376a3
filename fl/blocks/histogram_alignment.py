"""FedFA^h: features are aligned with their histograms over all clients.

See `fl.blocks.histograms` for the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter

import torch
from torch import Tensor

from fl.api import (
    COUNTS,
    Averaging,
    Batch,
    BuildContext,
    FedloomError,
    Forward,
    Inputs,
    Method,
    Output,
    Pass,
    Sweep,
    Term,
    Tree,
    steps_of,
    trees,
)
from fl.blocks.dummy_inputs import zero_inputs
from fl.blocks.feature_augmentation import channel_counts
from fl.blocks.histograms import histogram_sums, symmetric_kl
from fl.blocks.unweighted_mean import unweighted_mean, unweighted_upload

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


def alignment_features(context: BuildContext) -> Callable[[Output], Tensor]:
    """Return a function that selects the aligned features of a pass, [b, c, ...].

    They are the classifier's input; in a model without a classifier, the output of its last block.

    Raises:
        FedloomError: If the model has neither, or if the block's output has not the shape of
            images.
    """
    network = context.network
    if network.head:
        return attrgetter("features")
    [(layer, size)] = channel_counts(context, network.blocks[-1:]).items()
    network.tap([layer])

    def tap_features(output: Output) -> Tensor:
        tap = output.taps[layer]
        return tap.reshape(len(tap), size, -1)

    return tap_features


def alignment_term(context: BuildContext, lam: float, bins: int, tau: float) -> Term:
    """Return lam times the symmetric KL of the batch's and the server's histogram, a loss term.

    It is the mean over channels; 0 for a batch with fewer than two weighted samples.

    Args:
        context: The context in which the method is built.
        lam: The weight of the term.
        bins: The number of bins, see `fl.blocks.histograms.soft_bins`.
        tau: The temperature of the bins.
    """
    features_of = alignment_features(context)

    def term(forward: Forward) -> Tensor:
        target = forward.shared[HISTOGRAM]
        total, count = histogram_sums(
            features_of(forward.output), forward.batch["weight"], bins, tau
        )
        divergence = symmetric_kl(total / count.clamp(min=1), target).mean()
        return torch.where((count >= MIN_SAMPLES) & (target.sum() > 0), lam * divergence, 0)

    return term


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
    network, features_of = context.network, alignment_features(context)

    def features(variables: Tree, x: Inputs) -> Tensor:
        return features_of(network.eval(variables["params"], variables["buffers"], x))

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
        return dict(client), {
            **upload,
            HISTOGRAM: unweighted_upload({"own": local_histogram}, client[COUNTS].sum()),
        }

    def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
        models = {key: leaf for key, leaf in uploads.items() if key != HISTOGRAM}
        mean, client_states = base.aggregate(server, clients, models, n)
        return {
            **mean,
            HISTOGRAM: unweighted_mean(trees.mean(uploads[HISTOGRAM], n))["own"],
        }, client_states

    passes: tuple[Pass | Sweep, ...] = (*steps_of(base), Sweep(look, end))
    return replace(base, init=init, passes=passes, aggregate=Averaging(aggregate))
