"""Virtual images of clients: a few of each class that stand for a client's own samples.

C.-Y. Huang, R. Jin, C. Zhao, D. Xu, X. Li. Federated Learning on Virtual Heterogeneous Data with
Local-Global Dataset Distillation. TMLR 2024. arXiv:2303.02278 (sections 3.3.1 and 5.1), after B.
Zhao, H. Bilen. Dataset Condensation with Distribution Matching. WACV 2023. arXiv:2110.04181.

The images are leaves of the client's tree. They are normalised, like a network's inputs, and
ordered by class, with the same number of each: [classes x count, channels, height, width].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fl.api import (
    REAL,
    Batch,
    BuildContext,
    FedloomError,
    Pass,
    Phase,
    Rate,
    Sampling,
    Sweep,
    Tree,
    keyed,
    sgd,
    trees,
)
from fl.blocks.distillation import stacked_distribution_distance
from fl.blocks.exchange import aggregate_nothing
from fl.blocks.first_round import is_first
from fl.blocks.keyed_random import constant_parameters, keyed_normal, parameter_sampler
from fl.blocks.siamese_augmentation import augment_groups, draw_change

InitialImages = Literal["statistics", "noise", "real"]
"""The initial virtual images.

`statistics`: Gaussian with the client's mean and deviation of every class and channel; `noise`:
Gaussian with mean 0 and deviation 1; `real`: some of the client's own images.
"""

VIRTUAL_IMAGES = "images"
START_STREAM, ORDER_STREAM, PASS_STREAM = map(
    keyed.stream_number, ("virtual start", "virtual order", "virtual passes")
)


@dataclass(frozen=True)
class MatchingOptions:
    """Options of distribution matching.

    Attributes:
        real: Real images of every class in a step.
        lr: The learning rate of the virtual images; None: the run's.
        momentum: The momentum of the virtual images.
    """

    real: int
    lr: float | None
    momentum: float


def check_image_inputs(context: BuildContext) -> None:
    """Raise `FedloomError` unless inputs are images."""
    if len(context.shape) != 3:
        raise FedloomError(
            f"the method makes virtual images, but the model's inputs have shape {context.shape}",
            advice="choose a data set of images (channels, height, width)",
        )


def require_samples(count: int) -> Callable[[Tensor, Tensor], None]:
    """Return a check that every client has ``count`` training samples of every class."""

    def check(counts: Tensor, clients: Tensor) -> None:
        for client in clients.tolist():
            smallest, label = (int(number) for number in counts[client].min(0))
            if smallest == 0:
                raise FedloomError(
                    f"client {client} has no training sample of class {label}, so it cannot make "
                    "virtual images of it",
                    advice="choose a partition in which every client has every class "
                    "(min_per_class)",
                )
            if smallest < count:
                raise FedloomError(
                    f"images: is {count}, but client {client} has {smallest} training samples of "
                    f"class {label}",
                    f"at most {int(counts[clients].min())}",
                )

    return check


def image_labels(classes: int, count: int, example: Tensor) -> Tensor:
    """Return the labels of virtual images, [classes x count]."""
    return torch.arange(classes, device=example.device).repeat_interleave(count)


def zero_images(context: BuildContext, variables: Tree, count: int) -> Tensor:
    """Return images of zeros, a client's virtual images before it begins."""
    example = next(iter(variables["params"].values()))
    return example.new_zeros(context.classes * count, *context.shape)


def statistics_sweep(context: BuildContext, count: int, start: InitialImages) -> Sweep:
    """Return a sweep over all samples after which a client has its first virtual images.

    The server's tree must have a ``key``, int64.
    """

    def look(server: Tree, client: Tree, upload: Tree, batch: Batch) -> Tree:
        x, weight = batch["x"].double().flatten(2), batch["weight"].double()
        classes = torch.arange(context.classes, device=x.device)
        membership = (batch["y"][:, None] == classes).double() * weight[:, None]
        sums = {"total": x.sum(2), "square": x.square().sum(2)}
        class_sums = {name: membership.T @ values for name, values in sums.items()}
        return {**class_sums, "pixels": membership.sum(0) * x.shape[2]}

    def end(server: Tree, client: Tree, upload: Tree, totals: Tree) -> tuple[Tree, Tree]:
        key = keyed.derive_keys(server["key"], START_STREAM) + client["id"]
        shape = (context.classes, count, *context.shape)
        images = keyed_normal(key, 0, shape)
        if start == "statistics":
            pixels = totals["pixels"].clamp(min=1)[:, None]
            mean = totals["total"] / pixels
            sd = (totals["square"] / pixels - mean.square()).clamp(min=0).sqrt()
            images = images * sd[:, None, :, None, None] + mean[:, None, :, None, None]
        example = client[VIRTUAL_IMAGES]
        return {**client, VIRTUAL_IMAGES: images.flatten(0, 1).to(example.dtype)}, {}

    return Sweep(look, end, split=REAL)


def real_image_pass(count: int) -> Pass:
    """Return a pass of one step that takes ``count`` own images of every class as virtual ones."""

    def begin(server: Tree, client: Tree) -> Tree:
        return {"params": {VIRTUAL_IMAGES: client[VIRTUAL_IMAGES]}}

    def loss(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        return 0 * work["params"][VIRTUAL_IMAGES].sum(), {"seen": batch["x"]}

    def update(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
        return {"params": {VIRTUAL_IMAGES: aux["seen"]}}

    draws = Sampling(per_class=count, steps=lambda round_: 1)
    return Pass(begin, loss, update, _keep_images, draws)


def _keep_images(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
    return {**client, VIRTUAL_IMAGES: work["params"][VIRTUAL_IMAGES]}, {}


def initial_phase(context: BuildContext, count: int, start: InitialImages, *passes: Pass) -> Phase:
    """Return a phase before round 1 in which every client gets its first virtual images.

    Clients go on with ``passes``. The server's tree must have a ``key``, int64.
    """
    first: Pass | Sweep = statistics_sweep(context, count, start)
    if start == "real":
        first = real_image_pass(count)
    return Phase(
        (first, *passes),
        aggregate_nothing,
        is_active=is_first,
        send=lambda server: {"key": server["key"]},
        all_clients=True,
    )


def first_images(images: Tensor, classes: int, count: int) -> Tensor:
    """Return the first ``count`` images of every class, [clients, classes x count, ...]."""
    return images.unflatten(1, (classes, -1))[:, :, :count].flatten(1, 2).clone()


def distribution_matching(
    context: BuildContext,
    matching: MatchingOptions,
    steps: Callable[[int], int],
    network: Literal["new", "shared"],
) -> Pass:
    """Return a pass that draws features of virtual images to those of real ones by class.

    In every step all classes go through the network at once. The real and the virtual images of a
    class get the same random change. Real images are drawn without repetition; if a client has
    fewer of a class than asked for, all of them are taken.

    Args:
        context: The context in which the method is built.
        matching: The options of matching.
        steps: The number of steps in a round.
        network: `new`: a network that is drawn for each step; `shared`: the one that the server
            sent.
    """
    net, sample_parameters, optimizer = (
        context.network,
        parameter_sampler(context.network),
        sgd(matching.momentum),
    )
    classes = context.classes
    new = {
        "undrawn": constant_parameters(context.network),
        "buffers": context.network.init(0)["buffers"],
    }

    def begin(server: Tree, client: Tree) -> Tree:
        params = {VIRTUAL_IMAGES: client[VIRTUAL_IMAGES]}
        work = {"params": params, "optimizer": optimizer.init(params)}
        if network == "shared":
            return {**work, "buffers": dict(server["buffers"])}
        # Once a pass, because a copy in each step would wait for the device.
        return {**work, **trees.to(new, client[VIRTUAL_IMAGES].device)}

    def loss(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        key = batch["key"]
        params = (
            server["params"] if network == "shared" else sample_parameters(key[0], work["undrawn"])
        )
        group_change = draw_change(key.reshape(classes, -1)[:, 0])

        def features(x: Tensor, keys: Tensor) -> Tensor:
            changed = augment_groups(x.unflatten(0, (classes, -1)), group_change).flatten(0, 1)
            return net.train(params, work["buffers"], changed, key=keys).features.flatten(1)

        virtual = work["params"][VIRTUAL_IMAGES]
        with torch.no_grad():
            real_features = features(batch["x"], key)
        keys = keyed.derive_keys(key[0], PASS_STREAM) + torch.arange(
            len(virtual), device=key.device
        )
        virtual_features = features(virtual, keys).unflatten(0, (classes, -1))
        weight = batch["weight"].unflatten(0, (classes, -1))
        real_features = real_features.unflatten(0, (classes, -1))
        return stacked_distribution_distance(real_features, virtual_features, weight), {}

    def update(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
        rate = lr if matching.lr is None else matching.lr
        params, state = optimizer.step(work["params"], grads, work["optimizer"], rate)
        return {**work, "params": params, "optimizer": state}

    draws = Sampling(REAL, per_class=matching.real, steps=steps, needs_keys=True)
    return Pass(begin, loss, update, _keep_images, draws)


ImageSource = Callable[[Tree], tuple[Tensor, Tensor]]
"""A function that returns the training images and their labels from a work tree."""


def train_on_images(
    pass_: Pass,
    context: BuildContext,
    images: ImageSource,
    count: int,
    is_due: Callable[[int], bool],
) -> Pass:
    """Return the pass with batches of virtual images, in the rounds that are due.

    The images come in a new order for every epoch. The last batch of an epoch is filled up with
    images of weight 0. The batch of the client's own samples only decides size and keys.

    Args:
        pass_: The pass to change.
        context: The context in which the method is built.
        images: A function that returns the virtual images and their labels.
        count: The number of images.
        is_due: Whether the pass takes place in a round.

    Raises:
        FedloomError: For terms that adapt to batches of a client's samples now and then.
    """
    training = context.training
    size = training.batch_size
    batches_per_epoch = (
        count // size if training.drop_last and count > size else math.ceil(count / size)
    )
    steps = training.local_steps or batches_per_epoch * (training.local_epochs or 1)
    if pass_.refreshes:
        raise FedloomError(
            "terms: a term adapts periodically to batches of a client's samples, but the method "
            "trains on virtual images",
            advice="choose terms that adapt after every step (`update: step`)",
        )

    def begin(server: Tree, client: Tree) -> Tree:
        work = pass_.begin(server, client)
        return {**work, "step": torch.zeros_like(client["id"])}

    def loss(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        key, step = batch["key"], work["step"]
        epoch, position = step // batches_per_epoch, step % batches_per_epoch
        # The first key of the round: this step's key minus the samples of earlier steps.
        order_key = keyed.derive_keys(key[0] - step * size, ORDER_STREAM) + epoch
        order = keyed.uniform(order_key, 0, (count,)).argsort()
        indices = position * size + torch.arange(size, device=key.device)
        x, y = images(work)
        batch_indices = order[indices % count]
        weight = (indices < count).to(x.dtype)
        drawn_batch = {"x": x[batch_indices], "y": y[batch_indices], "weight": weight, "key": key}
        if pass_.reference:
            with torch.no_grad():
                drawn_batch["reference"] = pass_.reference(server, work, drawn_batch)
        return pass_.loss(server, work, drawn_batch)

    def update(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
        return {**pass_.update(server, work, grads, aux, lr), "step": work["step"] + 1}

    draws = Sampling(steps=lambda round_: steps if is_due(round_) else 0, needs_keys=True)
    return replace(pass_, begin=begin, loss=loss, update=update, sampling=draws, reference=None)
