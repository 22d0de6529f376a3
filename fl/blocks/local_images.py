"""Virtual images of clients: a few of each class that stand for a client's own samples.

C.-Y. Huang, R. Jin, C. Zhao, D. Xu, X. Li. Federated Learning on Virtual Heterogeneous Data with
Local-Global Dataset Distillation. TMLR 2024. arXiv:2303.02278 (sections 3.3.1 and 5.1), after B.
Zhao, H. Bilen. Dataset Condensation with Distribution Matching. WACV 2023. arXiv:2110.04181.

The images are part of a client's state. They are normalised, like a network's inputs, and
ordered by class, with the same number of each: [classes x count, channels, height, width].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NotRequired, TypedDict

import torch
from torch import Tensor

from fl.api import (
    REAL,
    Batch,
    BuildContext,
    ClientFacts,
    FedloomError,
    Network,
    Optimizer,
    Pass,
    Phase,
    Rate,
    RecipeUpload,
    RecipeWork,
    Sampling,
    Sweep,
    Tree,
    Variables,
    Weights,
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

START_STREAM, ORDER_STREAM, PASS_STREAM = map(
    keyed.stream_number, ("virtual start", "virtual order", "virtual passes")
)


class KeyServer(TypedDict):
    """Further state of the server.

    Attributes:
        key: Key of random numbers, int64 [].
    """

    key: Tensor


class ImagesClient(ClientFacts):
    """State of a client.

    Attributes:
        images: Its virtual images, [classes x count, channels, height, width].
    """

    images: Tensor


class OwnImages(TypedDict):
    """What a pass over virtual images trains: ``images``, as in `ImagesClient`."""

    images: Tensor


class ImagesWork(TypedDict):
    """State of a pass that changes virtual images, by which its loss is differentiated."""

    params: OwnImages


class MatchingWork(ImagesWork):
    """State of a pass of distribution matching.

    Attributes:
        optimizer: State of the images' optimizer.
        buffers: Buffers of the network by name.
        undrawn: Parameters of a new network that are not drawn, by name; absent if the network is
            the server's.
    """

    optimizer: Tree
    buffers: Weights
    undrawn: NotRequired[Weights]


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


def zero_images(context: BuildContext, variables: Variables, count: int) -> Tensor:
    """Return images of zeros, a client's virtual images before it begins."""
    example = next(iter(variables["params"].values()))
    return example.new_zeros(context.classes * count, *context.shape)


def statistics_sweep(context: BuildContext, count: int, start: InitialImages) -> Sweep:
    """Return a sweep over all samples after which a client has its first virtual images."""

    def look(server: KeyServer, client: ImagesClient, upload: Tree, batch: Batch) -> Tree:
        x, weight = batch["x"].double().flatten(2), batch["weight"].double()
        classes = torch.arange(context.classes, device=x.device)
        membership = (batch["y"][:, None] == classes).double() * weight[:, None]
        sums = {"total": x.sum(2), "square": x.square().sum(2)}
        class_sums = {name: membership.T @ values for name, values in sums.items()}
        return {**class_sums, "pixels": membership.sum(0) * x.shape[2]}

    def end(
        server: KeyServer, client: ImagesClient, upload: Tree, totals: Tree
    ) -> tuple[ImagesClient, Tree]:
        key = keyed.derive_keys(server["key"], START_STREAM) + client["id"]
        shape = (context.classes, count, *context.shape)
        images = keyed_normal(key, 0, shape)
        if start == "statistics":
            pixels = totals["pixels"].clamp(min=1)[:, None]
            mean = totals["total"] / pixels
            sd = (totals["square"] / pixels - mean.square()).clamp(min=0).sqrt()
            images = images * sd[:, None, :, None, None] + mean[:, None, :, None, None]
        return {**client, "images": images.flatten(0, 1).to(client["images"].dtype)}, {}

    return Sweep(look, end, split=REAL)


def real_image_pass(count: int) -> Pass:
    """Return a pass of one step that takes ``count`` own images of every class as virtual ones."""

    def begin(server: Tree, client: ImagesClient) -> ImagesWork:
        return {"params": {"images": client["images"]}}

    def loss(server: Tree, work: ImagesWork, batch: Batch) -> tuple[Tensor, Tree]:
        return 0 * work["params"]["images"].sum(), {"seen": batch["x"]}

    def update(server: Tree, work: ImagesWork, grads: Tree, aux: Tree, lr: Rate) -> ImagesWork:
        return {"params": {"images": aux["seen"]}}

    draws = Sampling(per_class=count, steps=lambda round_: 1)
    return Pass(begin, loss, update, keep_images, draws)


def keep_images(server: Tree, client: ImagesClient, work: ImagesWork) -> tuple[ImagesClient, Tree]:
    """Keep the images that a pass made, and upload nothing."""
    return {**client, "images": work["params"]["images"]}, {}


def initial_phase(context: BuildContext, count: int, start: InitialImages, *passes: Pass) -> Phase:
    """Return a phase before round 1 in which every client gets its first virtual images.

    Clients go on with ``passes``. The server's state is to have what `KeyServer` has.
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
) -> Pass[MatchingWork, Tree]:
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
    steps_of_pass = MatchingSteps(
        context.network,
        context.classes,
        matching,
        network == "new",
        sgd(matching.momentum),
        parameter_sampler(context.network),
        {
            "undrawn": constant_parameters(context.network),
            "buffers": context.network.init(0)["buffers"],
        },
    )
    return Pass(
        steps_of_pass.begin,
        steps_of_pass.loss,
        steps_of_pass.update,
        keep_images,
        Sampling(REAL, per_class=matching.real, steps=steps, needs_keys=True),
    )


@dataclass(frozen=True, eq=False)
class MatchingSteps:
    """Functions of the pass that `distribution_matching` returns.

    Attributes:
        network: The network.
        classes: The number of classes.
        matching: The options of matching.
        draws_network: Whether a network is drawn for each step.
        optimizer: The optimizer of the images.
        sample_parameters: A function that draws the parameters of a new network.
        new: What does not change between new networks.
    """

    network: Network
    classes: int
    matching: MatchingOptions
    draws_network: bool
    optimizer: Optimizer
    sample_parameters: Callable[[Tensor, Tree], dict[str, Tensor]]
    new: Tree

    def begin(self, server: Variables, client: ImagesClient) -> MatchingWork:
        """Begin with the client's images."""
        params: OwnImages = {"images": client["images"]}
        state = self.optimizer.init(params)
        if not self.draws_network:
            return {"params": params, "optimizer": state, "buffers": dict(server["buffers"])}
        # Once a pass, because a copy in each step would wait for the device.
        new = trees.to(self.new, client["images"].device)
        return {
            "params": params,
            "optimizer": state,
            "undrawn": new["undrawn"],
            "buffers": new["buffers"],
        }

    def loss(self, server: Variables, work: MatchingWork, batch: Batch) -> tuple[Tensor, Tree]:
        """Return the distance between features of virtual and of real images, over all classes."""
        key, classes = batch["key"], self.classes
        params = (
            self.sample_parameters(key[0], work["undrawn"])
            if self.draws_network
            else server["params"]
        )
        change = draw_change(key.reshape(classes, -1)[:, 0])

        def features(x: Tensor, keys: Tensor) -> Tensor:
            changed = augment_groups(x.unflatten(0, (classes, -1)), change).flatten(0, 1)
            output = self.network.train(params, work["buffers"], changed, key=keys)
            return output.features.flatten(1).unflatten(0, (classes, -1))

        virtual = work["params"]["images"]
        with torch.no_grad():
            real_features = features(batch["x"], key)
        keys = keyed.derive_keys(key[0], PASS_STREAM) + torch.arange(
            len(virtual), device=key.device
        )
        virtual_features = features(virtual, keys)
        weight = batch["weight"].unflatten(0, (classes, -1))
        return stacked_distribution_distance(real_features, virtual_features, weight), {}

    def update(
        self, server: Variables, work: MatchingWork, grads: Tree, aux: Tree, lr: Rate
    ) -> MatchingWork:
        """Take a step of the images' optimizer."""
        rate = lr if self.matching.lr is None else self.matching.lr
        params, state = self.optimizer.step(work["params"], grads, work["optimizer"], rate)
        return {**work, "params": {"images": params["images"]}, "optimizer": state}


ImageSource = Callable[[Any], tuple[Tensor, Tensor]]
"""Function that returns the training images and their labels from the state of a pass."""


def train_on_images(
    pass_: Pass[RecipeWork, RecipeUpload],
    context: BuildContext,
    images: ImageSource,
    count: int,
    is_due: Callable[[int], bool],
) -> Pass[RecipeWork, RecipeUpload]:
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
    is_last_dropped = training.drop_last and count > size
    per_epoch = count // size if is_last_dropped else math.ceil(count / size)
    steps = training.local_steps or per_epoch * (training.local_epochs or 1)
    batches = ImageBatches(count, size, per_epoch)
    if pass_.refreshes:
        raise FedloomError(
            "terms: a term adapts periodically to batches of a client's samples, but the method "
            "trains on virtual images",
            advice="choose terms that adapt after every step (`update: step`)",
        )

    def begin(server: Tree, client: ImagesClient) -> ImageTrainingWork:
        return {**pass_.begin(server, client), "step": torch.zeros_like(client["id"])}

    def loss(server: Tree, work: ImageTrainingWork, batch: Batch) -> tuple[Tensor, Tree]:
        drawn = batches.draw(*images(work), work["step"], batch["key"])
        if pass_.reference:
            with torch.no_grad():
                drawn = {**drawn, "reference": pass_.reference(server, work, drawn)}
        return pass_.loss(server, work, drawn)

    def update(
        server: Tree, work: ImageTrainingWork, grads: Tree, aux: Tree, lr: Rate
    ) -> ImageTrainingWork:
        work = {**work, **pass_.update(server, work, grads, aux, lr)}
        return {**work, "step": work["step"] + 1}

    draws = Sampling(steps=lambda round_: steps if is_due(round_) else 0, needs_keys=True)
    return replace(pass_, begin=begin, loss=loss, update=update, sampling=draws, reference=None)


class ImageTrainingWork(RecipeWork):
    """State of a pass that trains a network on virtual images.

    Attributes:
        step: Number of the next step in the round, 0, 1, ..., int64 [].
    """

    step: Tensor


@dataclass(frozen=True)
class ImageBatches:
    """Batches of virtual images, in a new random order in every epoch.

    Attributes:
        count: The number of images.
        size: The number of images in a batch; the last one of an epoch is filled up.
        per_epoch: The number of batches in an epoch.
    """

    count: int
    size: int
    per_epoch: int

    def draw(self, x: Tensor, y: Tensor, step: Tensor, keys: Tensor) -> Batch:
        """Return the batch of a step.

        Args:
            x: All virtual images, [count, ...].
            y: Their labels, [count].
            step: The number of the step in the round, 0, 1, ..., int64 [].
            keys: The keys of the client's own samples in this step, int64 [size].
        """
        epoch, position = step // self.per_epoch, step % self.per_epoch
        # The keys of a round are successive numbers. So its first key, from which the order of each
        # epoch is drawn, is found in every step.
        first_key = keys[0] - step * self.size
        order_key = keyed.derive_keys(first_key, ORDER_STREAM) + epoch
        order = keyed.uniform(order_key, 0, (self.count,)).argsort()
        places = position * self.size + torch.arange(self.size, device=keys.device)
        chosen = order[places % self.count]
        # Places after the last image only fill up the batch.
        weight = (places < self.count).to(x.dtype)
        return {"x": x[chosen], "y": y[chosen], "weight": weight, "key": keys}
