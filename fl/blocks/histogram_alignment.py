"""Features held to the histograms that they have over all clients: FedFA^h.

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
"""In the server's tree: [channels, bins] over all clients; zeros before there is one."""

MIN_SAMPLES = 2
"""Samples of which there is a histogram."""


def check_batch_size(context: BuildContext, method: str) -> None:
    """Raise `FedloomError` for batches that are too small to have a histogram."""
    if (size := context.training.batch_size) < MIN_SAMPLES:
        raise FedloomError(
            f"{method}: batch_size is {size}, and a histogram of one sample says nothing of a "
            f"distribution. Allowed: at least {MIN_SAMPLES}"
        )


def alignment_features(context: BuildContext) -> Callable[[Output], Tensor]:
    """Which features of a pass are aligned, [b, c, ...].

    They are what goes into the classifier; where the model has none, what its last block gives.

    Raises:
        FedloomError: If there is neither, or if the block gives no images.
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
    """lam times the symmetric KL between the batch's histogram and that of all clients.

    It is the mean over channels; 0 for a batch in which fewer than two samples have a weight.

    Args:
        lam: The weight of the term.
        bins, tau: As in `fl.blocks.histograms.soft_bins`.
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
    """The method with the term `alignment_term`; its clients send histograms of their features too.

    The histograms are of the model that the client just trained, in evaluation mode. A client with
    fewer than two samples counts as if its histogram were the one that it was sent.

    Args:
        lam, bins, tau: As in `alignment_term`.
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
