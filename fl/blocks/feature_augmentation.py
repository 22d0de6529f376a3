"""Layers that augment channel statistics, and the statistics that clients exchange for this.

See `fl.blocks.feature_statistics` for the papers. Each layer augments the features of a batch with
some probability. When it does, the client updates its running averages of the channel means and
deviations. From these the server learns how much each channel varies between clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fl.api import (
    ALTERATION_STATES,
    COUNTS,
    Alteration,
    Batch,
    BuildContext,
    FedloomError,
    Method,
    Network,
    Share,
    Tree,
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
STATISTICS = "statistics"
"""Key in the server's tree: by layer, clients' running mean and sd, and the variances of both."""

ALTER_STREAM, NOISE_STREAM = range(2)
"""Streams of a layer's keys."""

CHANNEL_CACHE: WeakKeyDictionary[Network, dict[str, int]] = WeakKeyDictionary()
"""Channels by layer that a pass has shown: a pass over large images takes a second."""

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

    def apply(layer: str, features: Tensor, batch: Batch, state: Tree) -> tuple[Tensor, Tree]:
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

    def adapt(state: Tree, observed: Tree) -> Tree:
        next_state = {}
        for layer, layer_state in state.items():
            running = {key: layer_state[key] for key in ("mean", "sd")}
            next_state[layer] = {
                **layer_state,
                **update_running_means(running, observed[layer], observed[layer]["met"], momentum),
            }
        return next_state

    return _add_alteration(
        context, Alteration(ALTERATION, tuple(channel_counts(context, layers)), apply, adapt=adapt)
    )


def with_exchanged_statistics(
    base: Method, context: BuildContext, layers: tuple[str, ...], fusion: Fusion
) -> Method:
    """Let clients upload the running averages that `federated_augmentation` keeps.

    The server keeps their unweighted mean over clients (weighted by samples if the task counts no
    classes) and their variance over clients, from which the weights of channels follow. Before
    round 1 means are 0, deviations and variances 1, as in the released code.

    Args:
        base: A method built in the context that `federated_augmentation` returned.
        context: That context.
        layers: The names of the layers; empty: the model's own blocks.
        fusion: Whether weights of channels follow from their variances or are these.
    """
    sizes, local = channel_counts(context, layers), single_pass(base)

    def init(variables: Tree) -> tuple[Tree, Tree]:
        server, client = base.init(variables)
        unit = trees.leaves(variables["params"])[0].new_ones(())
        initial = {"mean": unit * 0, "sd": unit, "mean_variance": unit, "sd_variance": unit}
        statistics = {
            layer: {key: value.repeat(size) for key, value in initial.items()}
            for layer, size in sizes.items()
        }
        return {**server, STATISTICS: statistics}, client

    def begin(server: Tree, client: Tree) -> Tree:
        work = local.begin(server, client)
        state = {
            layer: _initial_state(statistics, fusion)
            for layer, statistics in server[STATISTICS].items()
        }
        return {**work, ALTERATION_STATES: {**work.get(ALTERATION_STATES, {}), ALTERATION: state}}

    def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
        states = dict(work[ALTERATION_STATES])
        deviations = {
            layer: {
                key: layer_state[key] - server[STATISTICS][layer][key] for key in ("mean", "sd")
            }
            for layer, layer_state in states.pop(ALTERATION).items()
        }
        training_work = {key: leaf for key, leaf in work.items() if key != ALTERATION_STATES}
        client, upload = local.end(
            server, client, {**training_work, **({ALTERATION_STATES: states} if states else {})}
        )
        moments = {"apart": deviations, "square": trees.apply(torch.square, deviations)}
        samples = client[COUNTS].sum()
        shared_moments = unweighted_upload(moments, samples, context.training)
        return client, {**upload, STATISTICS: shared_moments}

    def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
        mean_moments = reweighted_mean(trees.mean(uploads[STATISTICS], n))
        models = {key: leaf for key, leaf in uploads.items() if key != STATISTICS}
        mean, client_states = base.aggregate(server, clients, models, n)
        statistics = {
            layer: _updated_statistics(
                previous, mean_moments["apart"][layer], mean_moments["square"][layer]
            )
            for layer, previous in server[STATISTICS].items()
        }
        return {**mean, STATISTICS: statistics}, client_states

    step = replace(local, begin=begin, end=end)
    return replace(base, init=init, passes=(step,), aggregate=WeightedAverage(aggregate))


def _add_alteration(context: BuildContext, alteration: Alteration) -> BuildContext:
    return replace(context, alterations=(alteration, *context.alterations))


def _change_at_random(features: Tensor, batch: Batch, p: float, change: FeatureChange) -> Tensor:
    shape = (2, features.shape[1])
    noise = keyed_normal(batch["key"], NOISE_STREAM, shape).to(features.dtype).movedim(-2, 0)
    changed_features = change(features, noise, batch)
    return torch.where(is_altered(batch["key"], ALTER_STREAM, p), changed_features, features)


def _initial_state(statistics: Tree, fusion: Fusion) -> Tree:
    """Return a layer's state at the beginning of a round, from the server's statistics."""
    weights_of = adaptive_weights if fusion == "adaptive" else torch.clone
    gammas = {f"gamma_{key}": weights_of(statistics[f"{key}_variance"]) for key in ("mean", "sd")}
    return {"mean": statistics["mean"], "sd": statistics["sd"], **gammas}


def _updated_statistics(old: Tree, deviation: Tree, squared_deviation: Tree) -> Tree:
    """Return the server's statistics of a layer after a round.

    Variances are (1/M) sum_m (t_m - mean)^2. They are computed around the previous mean, which is
    near, so that little is lost to rounding.
    """
    new_means = {key: old[key] + deviation[key] for key in ("mean", "sd")}
    variances = {
        f"{key}_variance": (squared_deviation[key] - deviation[key].square()).clamp(min=0)
        for key in deviation
    }
    return {**new_means, **variances}
