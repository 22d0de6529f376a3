"""Layers whose channel statistics are augmented, and what clients tell each other of these.

See `fl.blocks.feature_statistics` for the papers. Each layer augments the features of a batch with
some probability. When it does, the client updates its running means of the channel means and
deviations. From these the server knows how much each channel varies over clients.
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
    Averaging,
    Batch,
    BuildContext,
    FedloomError,
    Method,
    Network,
    Share,
    Tree,
    only,
    trees,
)
from fl.blocks.blank import blank_inputs
from fl.blocks.each_alike import parted, plain
from fl.blocks.feature_statistics import (
    adaptive_weights,
    augment,
    batch_mean,
    followed,
    moments,
)
from fl.blocks.gaussian import gaussian
from fl.blocks.partners import check_images, is_drawn

Fusion = Literal["adaptive", "direct"]
NAME = "fedfa"
STATISTICS = "statistics"
"""In the server's tree, by layer: the clients' running mean and sd, and the variances of both."""

WHETHER, NOISE = range(2)
"""Streams of a layer's keys."""

KNOWN: WeakKeyDictionary[Network, dict[str, int]] = WeakKeyDictionary()
"""By layer, the channels that a pass has shown: one over large images takes a second."""

Change = Callable[[Tensor, Tensor, Batch], Tensor]
"""(features [b, c, h, w], noise [2, b, c], batch) -> features."""


def channels(context: BuildContext, layers: tuple[str, ...]) -> dict[str, int]:
    """How many channels each layer gives, as seen in a pass over zeros.

    Where ``layers`` names none, they are the model's own blocks.

    Raises:
        FedloomError: If there are no layers, or for a layer that the model does not have or use, or
            that gives no images.
    """
    network = context.network
    layers = layers or network.blocks
    if not layers:
        raise FedloomError("layers: is empty, and the model names no blocks. Allowed: some layers")
    known = KNOWN.setdefault(network, {})
    unknown = tuple(layer for layer in layers if layer not in known)
    if unknown:
        known |= _passed(context, unknown)
    return {layer: known[layer] for layer in layers}


def _passed(context: BuildContext, layers: tuple[str, ...]) -> dict[str, int]:
    """`channels` of layers that are named, from a pass."""
    network, sizes = context.network, dict[str, int]()

    def note(layer: str, features: Tensor) -> Tensor:
        check_images(features, "layers", layer)
        sizes[layer] = features.shape[1]
        return features

    network.alter(layers)
    variables = network.init(0)
    x = blank_inputs(context, 2, trees.leaves(variables["params"])[0])
    alter = {layer: partial(note, layer) for layer in layers}
    with torch.no_grad():
        network.train(
            variables["params"], variables["buffers"], x, key=torch.arange(2), alter=alter
        )
    if unused := [layer for layer in layers if layer not in sizes]:
        raise FedloomError(
            f"layers: a pass does not use {unused[0]}. Allowed: a layer that it uses"
        )
    return sizes


def drawn(context: BuildContext, layers: tuple[str, ...], p: float, change: Change) -> BuildContext:
    """The setting with one alteration more: each layer changes a batch's features by chance.

    Args:
        p: The probability; each layer draws for itself.
        change: What is done to the features.

    Raises:
        FedloomError: As `channels`.
    """

    def apply(layer: str, features: Tensor, batch: Batch, state: Tree) -> tuple[Tensor, Tree]:
        return _changed(features, batch, p, change), {}

    return _with(context, Alteration(NAME, tuple(channels(context, layers)), apply))


def federated(
    context: BuildContext, layers: tuple[str, ...], p: float, momentum: Share
) -> BuildContext:
    """The setting with the alteration of FedFA^l; `exchanged` sends its state there and back."""

    def apply(layer: str, features: Tensor, batch: Batch, state: Tree) -> tuple[Tensor, Tree]:
        given, weight = state[layer], batch["weight"]

        def change(x: Tensor, noise: Tensor, batch: Batch) -> Tensor:
            gammas = given["gamma_mean"], given["gamma_sd"]
            return augment(x, noise[0], noise[1], *gammas, weight=weight)

        statistics = moments(features.detach())
        mean, sd = (batch_mean(statistic, weight) for statistic in statistics)
        met = is_drawn(batch["key"], WHETHER, p).to(mean.dtype)
        return _changed(features, batch, p, change), {"mean": mean, "sd": sd, "met": met}

    def adapt(state: Tree, seen: Tree) -> Tree:
        after = {}
        for layer, given in state.items():
            running = {key: given[key] for key in ("mean", "sd")}
            after[layer] = {**given, **followed(running, seen[layer], seen[layer]["met"], momentum)}
        return after

    return _with(context, Alteration(NAME, tuple(channels(context, layers)), apply, adapt=adapt))


def exchanged(
    base: Method, context: BuildContext, layers: tuple[str, ...], fusion: Fusion
) -> Method:
    """The method, whose clients send the running means that `federated` keeps.

    The server keeps their plain mean over clients (weighted by samples where the task counts no
    classes) and their variance over clients, from which the weights of channels follow. Before
    round 1 means are 0, deviations and variances 1, as in the released code.

    Args:
        base: A method made with the setting that `federated` returned.
    """
    sizes, local = channels(context, layers), only(base)

    def init(variables: Tree) -> tuple[Tree, Tree]:
        server, client = base.init(variables)
        unit = trees.leaves(variables["params"])[0].new_ones(())
        begun = {"mean": unit * 0, "sd": unit, "mean_variance": unit, "sd_variance": unit}
        known = {
            layer: {key: value.repeat(size) for key, value in begun.items()}
            for layer, size in sizes.items()
        }
        return {**server, STATISTICS: known}, client

    def begin(server: Tree, client: Tree) -> Tree:
        work = local.begin(server, client)
        state = {layer: _given(known, fusion) for layer, known in server[STATISTICS].items()}
        return {**work, ALTERATION_STATES: {**work.get(ALTERATION_STATES, {}), NAME: state}}

    def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
        states = dict(work[ALTERATION_STATES])
        apart = {
            layer: {key: ran[key] - server[STATISTICS][layer][key] for key in ("mean", "sd")}
            for layer, ran in states.pop(NAME).items()
        }
        rest = {key: leaf for key, leaf in work.items() if key != ALTERATION_STATES}
        client, upload = local.end(
            server, client, {**rest, **({ALTERATION_STATES: states} if states else {})}
        )
        seen = {"apart": apart, "square": trees.apply(torch.square, apart)}
        return client, {**upload, STATISTICS: parted(seen, client[COUNTS].sum())}

    def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
        told = plain(trees.mean(uploads[STATISTICS], n))
        models = {key: leaf for key, leaf in uploads.items() if key != STATISTICS}
        mean, kept = base.aggregate(server, clients, models, n)
        known = {
            layer: _renewed(old, told["apart"][layer], told["square"][layer])
            for layer, old in server[STATISTICS].items()
        }
        return {**mean, STATISTICS: known}, kept

    step = replace(local, begin=begin, end=end)
    return replace(base, init=init, passes=(step,), aggregate=Averaging(aggregate))


def _with(context: BuildContext, alteration: Alteration) -> BuildContext:
    return replace(context, alterations=(alteration, *context.alterations))


def _changed(features: Tensor, batch: Batch, p: float, change: Change) -> Tensor:
    shape = (2, features.shape[1])
    noise = gaussian(batch["key"], NOISE, shape).to(features.dtype).movedim(-2, 0)
    changed = change(features, noise, batch)
    return torch.where(is_drawn(batch["key"], WHETHER, p), changed, features)


def _given(known: Tree, fusion: Fusion) -> Tree:
    """A layer's state at the beginning of a round, from what the server sent."""
    weigh = adaptive_weights if fusion == "adaptive" else torch.clone
    gammas = {f"gamma_{key}": weigh(known[f"{key}_variance"]) for key in ("mean", "sd")}
    return {"mean": known["mean"], "sd": known["sd"], **gammas}


def _renewed(old: Tree, apart: Tree, square: Tree) -> Tree:
    """What the server knows of a layer.

    Variances are (1/M) sum_m (t_m - mean)^2. They are computed around the previous mean, which is
    near, so that little is lost to rounding.
    """
    means = {key: old[key] + apart[key] for key in ("mean", "sd")}
    variances = {
        f"{key}_variance": (square[key] - apart[key].square()).clamp(min=0) for key in apart
    }
    return {**means, **variances}
