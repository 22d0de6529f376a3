"""Layers that augment channel statistics, and the statistics that clients exchange for this.

See `fl.blocks.feature_statistics` for the papers. Each layer augments the features of a batch with
some probability. When it does, the client updates its running averages of the channel means and
deviations. From these the server learns how much each channel varies between clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypedDict
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fl.api import (
    Alteration,
    Batch,
    BuildContext,
    FedloomError,
    Network,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    Share,
    Tree,
    Variables,
    WeightedAverage,
    single_pass,
    trees,
)
from fl.blocks.batch_alterations import check_feature_maps, is_altered
from fl.blocks.dummy_inputs import zero_inputs
from fl.blocks.feature_statistics import (
    adaptive_weights,
    augment,
    batch_mean,
    channel_moments,
    update_running_means,
)
from fl.blocks.keyed_random import keyed_normal
from fl.blocks.reweighting import reweighted_mean, unweighted_upload

Fusion = Literal["adaptive", "direct"]
ALTERATION = "fedfa"
ALTER_STREAM, NOISE_STREAM = range(2)
"""Streams of a layer's keys."""

CHANNEL_CACHE: WeakKeyDictionary[Network, dict[str, int]] = WeakKeyDictionary()
"""Channels by layer that a pass has shown: a pass over large images takes a second."""


class LayerStatistics(TypedDict):
    """What the server knows of the features of a layer, [c] each.

    Attributes:
        mean: Mean over clients of the running means of channels.
        sd: The same of their deviations.
        mean_variance: Variance over clients of the running means.
        sd_variance: The same of the deviations.
    """

    mean: Tensor
    sd: Tensor
    mean_variance: Tensor
    sd_variance: Tensor


class LayerState(TypedDict):
    """State of a layer during a client's pass, [c] each.

    Attributes:
        mean: Running mean of each channel.
        sd: Running mean of its deviation.
        gamma_mean: Weight of the variance over clients of its mean.
        gamma_sd: The same of its deviation.
    """

    mean: Tensor
    sd: Tensor
    gamma_mean: Tensor
    gamma_sd: Tensor


class StatisticsServer(RecipeServer):
    """State of the server.

    Attributes:
        statistics: Statistics of each layer that is augmented, by its name.
    """

    statistics: Mapping[str, LayerStatistics]


class StatisticsUpload(RecipeUpload):
    """Upload of a client.

    Attributes:
        statistics: By layer, how far the client's running means are from the server's, and the
            squares of that, as `fl.blocks.reweighting.unweighted_upload` makes it.
    """

    statistics: Tree


FeatureChange = Callable[[Tensor, Tensor, Batch], Tensor]
"""(features [b, c, h, w], noise [2, b, c], batch) -> features."""


def channel_counts(context: BuildContext, layers: tuple[str, ...]) -> dict[str, int]:
    """Return the number of channels of each layer's output, as a pass over zeros shows it.

    If ``layers`` is empty, the layers are the model's own blocks.

    Raises:
        FedloomError: If there are no layers, or for a layer that the model does not have, does not
            use, or whose output has not the shape of images.
    """
    network = context.network
    layers = layers or network.blocks
    if not layers:
        raise FedloomError(
            "layers: is empty, and the model names no blocks", advice="name some layers"
        )
    cache = CHANNEL_CACHE.setdefault(network.origin, {})
    unknown = tuple(layer for layer in layers if layer not in cache)
    if unknown:
        cache |= _channels_in_pass(context, unknown)
    return {layer: cache[layer] for layer in layers}


def _channels_in_pass(context: BuildContext, layers: tuple[str, ...]) -> dict[str, int]:
    """Return `channel_counts` of named layers, from a pass."""
    # A view, so that finding out shapes leaves the study's network as it is.
    network, sizes = context.network.view(), dict[str, int]()

    def note(layer: str, features: Tensor) -> Tensor:
        check_feature_maps(features, "layers", layer)
        sizes[layer] = features.shape[1]
        return features

    network.alter(layers)
    variables = network.init(0)
    x = zero_inputs(context, 2, trees.leaves(variables["params"])[0])
    alter = {layer: partial(note, layer) for layer in layers}
    with torch.no_grad():
        network.train(
            variables["params"], variables["buffers"], x, key=torch.arange(2), alter=alter
        )
    if unused := [layer for layer in layers if layer not in sizes]:
        raise FedloomError(
            f"layers: a pass does not use {unused[0]}", advice="name a layer that the model uses"
        )
    return sizes


def random_augmentation(
    context: BuildContext, layers: tuple[str, ...], p: float, change: FeatureChange
) -> BuildContext:
    """Add an alteration to the context: each layer changes the features of a batch at random.

    Args:
        context: The context in which a method is built.
        layers: The names of the layers; empty: the model's own blocks.
        p: The probability of a change; each layer draws for itself.
        change: A function that changes the features.

    Raises:
        FedloomError: See `channel_counts`.
    """

    def apply(layer: str, features: Tensor, batch: Batch, state: Tree) -> tuple[Tensor, Tree]:
        return _change_at_random(features, batch, p, change), {}

    return _add_alteration(
        context, Alteration(ALTERATION, tuple(channel_counts(context, layers)), apply)
    )


def federated_augmentation(
    context: BuildContext, layers: tuple[str, ...], p: float, momentum: Share
) -> BuildContext:
    """Add the alteration of FedFA^l, whose state `with_exchanged_statistics` exchanges."""

    def apply(
        layer: str, features: Tensor, batch: Batch, state: Mapping[str, LayerState]
    ) -> tuple[Tensor, Tree]:
        layer_state, weight = state[layer], batch["weight"]

        def change(x: Tensor, noise: Tensor, batch: Batch) -> Tensor:
            gammas = layer_state["gamma_mean"], layer_state["gamma_sd"]
            return augment(x, noise[0], noise[1], *gammas, weight=weight)

        statistics = channel_moments(features.detach())
        mean, sd = (batch_mean(statistic, weight) for statistic in statistics)
        is_met = is_altered(batch["key"], ALTER_STREAM, p).to(mean.dtype)
        return _change_at_random(features, batch, p, change), {
            "mean": mean,
            "sd": sd,
            "met": is_met,
        }

    def adapt(state: Mapping[str, LayerState], observed: Tree) -> Tree:
        next_state = {}
        for layer, layer_state in state.items():
            running = {"mean": layer_state["mean"], "sd": layer_state["sd"]}
            next_state[layer] = {
                **layer_state,
                **update_running_means(running, observed[layer], observed[layer]["met"], momentum),
            }
        return next_state

    return _add_alteration(
        context, Alteration(ALTERATION, tuple(channel_counts(context, layers)), apply, adapt=adapt)
    )


def with_exchanged_statistics(
    base: Recipe, context: BuildContext, layers: tuple[str, ...], fusion: Fusion
) -> Recipe:
    """Let clients upload the running averages that `federated_augmentation` keeps.

    The server keeps their unweighted mean over clients (weighted by samples if the task counts no
    classes) and their variance over clients, from which the weights of channels follow. The states
    before round 1 are as in the released code.

    Args:
        base: A method built in the context that `federated_augmentation` returned.
        context: That context.
        layers: The names of the layers; empty: the model's own blocks.
        fusion: Whether weights of channels follow from their variances or are these.
    """
    steps = StatisticsSteps(base, context, channel_counts(context, layers), fusion)
    training = replace(single_pass(base), begin=steps.begin, end=steps.end)
    aggregate = WeightedAverage(steps.aggregate)
    return replace(base, init=steps.init, passes=(training,), aggregate=aggregate)


@dataclass(frozen=True, eq=False)
class StatisticsSteps:
    """Functions of the method that `with_exchanged_statistics` returns.

    Attributes:
        base: A method built in the context.
        context: The context in which the method is built.
        sizes: The number of channels of each layer.
        fusion: Whether weights of channels follow from their variances or are these.
    """

    base: Recipe
    context: BuildContext
    sizes: Mapping[str, int]
    fusion: Fusion

    def init(self, variables: Variables) -> tuple[StatisticsServer, RecipeClient]:
        """Return the states before round 1: means are 0, deviations and variances 1."""
        server, client = self.base.init(variables)
        unit = trees.leaves(variables["params"])[0].new_ones(())
        statistics: dict[str, LayerStatistics] = {
            layer: {
                "mean": (unit * 0).repeat(size),
                "sd": unit.repeat(size),
                "mean_variance": unit.repeat(size),
                "sd_variance": unit.repeat(size),
            }
            for layer, size in self.sizes.items()
        }
        return {**server, "statistics": statistics}, client

    def begin(self, server: StatisticsServer, client: RecipeClient) -> RecipeWork:
        """Begin training with the server's statistics."""
        work = single_pass(self.base).begin(server, client)
        state = {
            layer: initial_state(statistics, self.fusion)
            for layer, statistics in server["statistics"].items()
        }
        return {**work, "alterations": {**work.get("alterations", {}), ALTERATION: state}}

    def end(
        self, server: StatisticsServer, client: RecipeClient, work: RecipeWork
    ) -> tuple[RecipeClient, StatisticsUpload]:
        """Upload how far the client's running means are from the server's."""
        states = dict(work["alterations"])
        apart = {
            layer: {
                "mean": layer_state["mean"] - server["statistics"][layer]["mean"],
                "sd": layer_state["sd"] - server["statistics"][layer]["sd"],
            }
            for layer, layer_state in states.pop(ALTERATION).items()
        }
        without: Tree = {key: leaf for key, leaf in work.items() if key != "alterations"}
        added = {"alterations": states} if states else {}
        client, upload = single_pass(self.base).end(server, client, {**without, **added})
        moments = {"apart": apart, "square": trees.apply(torch.square, apart)}
        samples = client["counts"].sum()
        sent = unweighted_upload(moments, samples, self.context.training)
        return client, {**upload, "statistics": sent}

    def aggregate(
        self,
        server: StatisticsServer,
        clients: RecipeClient,
        uploads: StatisticsUpload,
        n: Tensor,
    ) -> tuple[StatisticsServer, RecipeClient]:
        """Average the models, and renew the statistics of each layer."""
        moments = reweighted_mean(trees.mean(uploads["statistics"], n))
        models = {key: leaf for key, leaf in uploads.items() if key != "statistics"}
        mean, clients = self.base.aggregate(server, clients, models, n)
        statistics = {
            layer: updated_statistics(old, moments["apart"][layer], moments["square"][layer])
            for layer, old in server["statistics"].items()
        }
        return {**mean, "statistics": statistics}, clients


def _add_alteration(context: BuildContext, alteration: Alteration) -> BuildContext:
    return replace(context, alterations=(alteration, *context.alterations))


def _change_at_random(features: Tensor, batch: Batch, p: float, change: FeatureChange) -> Tensor:
    shape = (2, features.shape[1])
    noise = keyed_normal(batch["key"], NOISE_STREAM, shape).to(features.dtype).movedim(-2, 0)
    changed_features = change(features, noise, batch)
    return torch.where(is_altered(batch["key"], ALTER_STREAM, p), changed_features, features)


def initial_state(statistics: LayerStatistics, fusion: Fusion) -> LayerState:
    """Return a layer's state at the beginning of a round, from the server's statistics."""
    weights_of = adaptive_weights if fusion == "adaptive" else torch.clone
    return {
        "mean": statistics["mean"],
        "sd": statistics["sd"],
        "gamma_mean": weights_of(statistics["mean_variance"]),
        "gamma_sd": weights_of(statistics["sd_variance"]),
    }


def updated_statistics(old: LayerStatistics, apart: Tree, square: Tree) -> LayerStatistics:
    """Return the server's statistics of a layer after a round.

    Variances are (1/M) sum_m (t_m - mean)^2. They are computed around the previous mean, which is
    near, so that little is lost to rounding.

    Args:
        old: The statistics before.
        apart: The mean over clients of t_m minus the previous mean, of ``mean`` and of ``sd``.
        square: The mean of the squares of that.
    """
    return {
        "mean": old["mean"] + apart["mean"],
        "sd": old["sd"] + apart["sd"],
        "mean_variance": (square["mean"] - apart["mean"].square()).clamp(min=0),
        "sd_variance": (square["sd"] - apart["sd"].square()).clamp(min=0),
    }
