"""FedLGD: clients train on virtual images of their own, held to global ones that the server makes.

Huang, Jin, Zhao, Xu, Li. Federated Learning on Virtual Heterogeneous Data with Local-Global Dataset
Distillation. TMLR 2024. arXiv:2303.02278.

Family: features. Exchanged: model; down, images of the server. Local: images made of the samples.
Key: `lam`.

Before round 1 every client distils its samples into a few images per class (distribution matching,
with a newly drawn network in every step). The rounds tau are an arithmetic sequence that begins
with the first round. In them the server moves its own images so that their gradient points where
the round's update went. From the second of them on, clients first go on with distilling their
images, in the features of the shared model. The rounds tau train by cross-entropy; in all other
rounds features are held to those of the global images.

As in the released code: clients train on local and global images together, and the first global
ones are noise; the gradient that is matched is (w before - w after) / lr, at w before; every client
weighs the same. Other than there: a class's first mean is over its own pixels, not over all of the
client's; tau has ten rounds, as the paper says, where the code has eleven; global images start from
noise, as the paper says. Global images go to all clients in the rounds after tau. On the same
weights and images four steps of gradient matching, the contrast and the MMD are those of the
released code (cdd8382) to 3e-15 in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    Count,
    Forward,
    Index,
    Method,
    NonNegative,
    Pass,
    Positive,
    Recipe,
    RecipeUpload,
    Share,
    Term,
    Variables,
    cross_entropy,
    declare,
    keyed,
    recipe,
    rng,
    shared_model,
    single_pass,
    trees,
)
from fl.blocks import local_images
from fl.blocks.contrastive_loss import supervised_contrastive_loss
from fl.blocks.global_images import (
    GlobalClient,
    GlobalImages,
    GlobalServer,
    GlobalWork,
    train_on_local_and_global,
)
from fl.blocks.local_images import (
    InitialImages,
    MatchingOptions,
    distribution_matching,
)

ImageDistance = Literal["contrastive", "mmd"]
SHARED_IMAGE_STREAM = keyed.stream_number("shared images")
KERNEL_WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)


class FedLGDServer(GlobalServer):
    """State of the server.

    Attributes:
        round: Number of rounds so far, int64 [].
    """

    round: Tensor


class FedLGDModel(Variables):
    """Weights that are evaluated, with the images of `GlobalServer`."""

    images: Tensor


@declare("global", one_input=True)
class FedLGD:
    """Training on distilled images of clients and of the server.

    Attributes:
        images: Number of images of a client for each class.
        global_images: Number of images of the server for each class.
        initial: First images of a client: Gaussian with the `statistics` of each class and channel,
            `noise`, or `real` images of its own.
        warmup: Number of steps of distribution matching before round 1.
        real: Number of real images of a class in each of these steps.
        every: Interval between the rounds of tau: 1, 1 + every, and so on.
        times: Number of rounds of tau.
        client_steps: Steps of a client's distillation in each round of tau.
        server_steps: Steps of the server's distillation in each round of tau.
        image_lr: Learning rate of all images.
        image_momentum: Momentum of all images.
        lam: Weight lambda of the regulariser that keeps features near those of global images (10
            for DIGITS, 1 for CIFAR-10-C).
        regulariser: Regulariser: supervised contrastive loss (`contrastive`) or `mmd`.
        tau: Temperature of the contrastive loss.
        kept: Number of images per class and client in a run's traces.
    """

    images: Count = 50
    global_images: Count = 10
    initial: InitialImages = "statistics"
    warmup: Index = 10000
    real: Count = 256
    every: Count = 5
    times: Index = 10
    client_steps: Index = 100
    server_steps: Index = 500
    image_lr: Positive = 1.0
    image_momentum: Share = 0.5
    lam: NonNegative = 10.0
    regulariser: ImageDistance = "contrastive"
    tau: Positive = 0.07
    kept: Count = 1

    def build(self, context: BuildContext) -> Method:
        """FedAvg on virtual images, with distillation on both sides."""
        local_images.check_image_inputs(context)
        anchors = GlobalImages(
            context,
            self.global_images,
            self.is_distilling,
            self.server_steps,
            self.image_lr,
            self.image_momentum,
        )
        matching = MatchingOptions(self.real, self.image_lr, self.image_momentum)
        warming = distribution_matching(context, matching, lambda round_: self.warmup, "new")
        steps = FedLGDSteps(self, recipe(context), anchors, context)
        return Method(
            steps.init,
            self.passes(context, matching, anchors),
            steps.aggregate,
            {"global": evaluated_model},
            earlier_phases=(
                local_images.initial_phase(context, self.images, self.initial, warming),
                anchors.sending_phase(),
            ),
            send=lambda server: shared_model(server, None),
            trace=lambda server: {"global": server["images"]},
            trace_clients=lambda clients: {
                "local": local_images.first_images(clients["images"], context.classes, self.kept)
            },
            check_clients=local_images.require_samples(self.images),
            server_work=(anchors.server_work(),),
        )

    def passes(
        self, context: BuildContext, matching: MatchingOptions, anchors: GlobalImages
    ) -> tuple[Pass, ...]:
        """Return a pass that makes images, one for the rounds tau and one for all other rounds."""
        term = shared_image_term(self.lam, self.regulariser, self.tau, anchors.labelled_copy)
        harmonious = recipe(context, terms=(cross_entropy, term))
        return (
            distribution_matching(context, matching, self._refreshes, "shared"),
            train_on_local_and_global(
                single_pass(recipe(context)), anchors, self.images, self.is_distilling
            ),
            train_on_local_and_global(
                single_pass(harmonious),
                anchors,
                self.images,
                lambda round_: not self.is_distilling(round_),
            ),
        )

    def is_distilling(self, round_: int) -> bool:
        """Whether a round belongs to tau."""
        quotient, remainder = divmod(round_ - 1, self.every)
        return remainder == 0 and quotient < self.times

    def _refreshes(self, round_: int) -> int:
        return self.client_steps if self.is_distilling(round_) and round_ > 1 else 0


@dataclass(frozen=True, eq=False)
class FedLGDSteps:
    """Functions of the server of FedLGD.

    Attributes:
        options: The keys of the method.
        plain: FedAvg.
        anchors: The server's images.
        context: The context in which the method is built.
    """

    options: FedLGD
    plain: Recipe
    anchors: GlobalImages
    context: BuildContext

    def init(self, variables: Variables) -> tuple[FedLGDServer, GlobalClient]:
        """Return FedAvg's states, with first images of the server."""
        server, client = self.plain.init(variables)
        template = trees.leaves(variables["params"])[0]
        key = torch.tensor(
            rng.torch_seed(self.context.seed, "virtual images"), device=template.device
        )
        images = self.anchors.initial_images(key, template.dtype)
        client_images = local_images.zero_images(self.context, variables, self.options.images)
        return (
            {**server, "images": images, "key": key, "round": torch.zeros_like(key)},
            {**client, "images": client_images, "anchors": torch.zeros_like(images)},
        )

    def aggregate(
        self, server: FedLGDServer, clients: GlobalClient, uploads: RecipeUpload, n: Tensor
    ) -> tuple[FedLGDServer, GlobalClient]:
        """Average the models, every client alike, and distil in the rounds tau."""
        mean, round_ = trees.mean(uploads, torch.ones_like(n)), server["round"] + 1
        images = server["images"]
        if self.options.is_distilling(int(round_)):
            images = self.anchors.distil(server, mean, int(round_))
        return {**server, **mean, "round": round_, "images": images}, clients


def evaluated_model(server: FedLGDServer, client: object) -> FedLGDModel:
    """Return the shared model and the server's images, as a view."""
    return {**shared_model(server, None), "images": server["images"]}


def shared_image_term(
    lam: float,
    kind: ImageDistance,
    tau: float,
    labelled_copy: Callable[[GlobalWork], tuple[Tensor, Tensor]],
) -> Term:
    """Return lam times the distance between features of the batch and of the global images.

    Args:
        lam: The weight of the term.
        kind: The distance.
        tau: The temperature of the contrast.
        labelled_copy: A function that returns the images and their labels.
    """

    def term(forward: Forward) -> Tensor:
        work: GlobalWork = forward.work
        x, y = labelled_copy(work)
        batch = forward.batch
        key = keyed.derive_keys(batch["key"][0], SHARED_IMAGE_STREAM) + torch.arange(
            len(x), device=x.device
        )
        shared_output = forward.network.train(forward.params, work["buffers"], x, key=key)
        features = forward.output.features.flatten(1)
        shared_features = shared_output.features.flatten(1)
        if kind == "mmd":
            return lam * gaussian_mmd2(features, shared_features, batch["weight"])
        weight = torch.cat([batch["weight"], torch.ones_like(shared_features[:, 0])])
        samples = torch.cat([features, shared_features]), torch.cat([batch["y"], y])
        return lam * supervised_contrastive_loss(*samples, tau, weight)

    return term


def gaussian_mmd2(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Biased squared MMD of x and y, a scalar.

    A. Gretton et al. A Kernel Two-Sample Test. JMLR 2012, with kernels as in M. Long et al.,
    Learning Transferable Features with Deep Adaptation Networks, ICML 2015.
    It is summed over five Gaussian kernels exp(-|a - b|^2 / (w s)), w from 1/4 to 4. s is the mean
    squared distance of different samples, and has no gradient.

    Args:
        x: The first sample, [n, d].
        y: The second sample, [m, d].
        weight: The weight of each row of x, [n].
    """
    samples = torch.cat([x, y])
    x_weight = torch.cat([weight, torch.zeros_like(y[:, 0])])
    counts = torch.cat([weight, torch.ones_like(y[:, 0])])
    centred = samples - samples.mean(0)
    length = centred.square().sum(1)
    distances = (length[:, None] + length - 2 * centred @ centred.T).clamp(min=0)
    total = counts.sum()
    pairs = counts[:, None] * counts
    scale = (distances.detach() * pairs).sum() / (total * (total - 1)).clamp(min=1)
    kernel = sum(torch.exp(-distances / (w * scale.clamp(min=1e-12))) for w in KERNEL_WIDTHS)
    share = x_weight / x_weight.sum().clamp(min=1) - (counts - x_weight) / len(y)
    return share @ kernel @ share
