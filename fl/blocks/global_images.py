"""Virtual images that the server distils from the rounds' updates and sends to every client.

C.-Y. Huang, R. Jin, C. Zhao, D. Xu, X. Li. Federated Learning on Virtual Heterogeneous Data with
Local-Global Dataset Distillation. TMLR 2024. arXiv:2303.02278 (section 3.3.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    BuildContext,
    Network,
    Pass,
    Phase,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    ServerWork,
    Tree,
    Variables,
    keyed,
    learning_rate,
    sgd,
    trees,
)
from fl.blocks import local_images
from fl.blocks.distillation import gradient_distance
from fl.blocks.first_round import copy_to_clients
from fl.blocks.keyed_random import keyed_normal
from fl.blocks.local_images import ImagesClient, KeyServer

IMAGE_STREAM = keyed.stream_number("global images")
MATCHING_STREAM = keyed.stream_number("gradient matching")


class GlobalServer(RecipeServer, KeyServer):
    """State of the server.

    Attributes:
        images: Its virtual images, [classes x count, channels, height, width], by class.
    """

    images: Tensor


class GlobalClient(RecipeClient, ImagesClient):
    """State of a client.

    Attributes:
        anchors: Its latest copy of the server's images.
    """

    anchors: Tensor


class GlobalWork(RecipeWork):
    """State of a client's pass.

    Attributes:
        images: As in `ImagesClient`.
        anchors: As in `GlobalClient`.
    """

    images: Tensor
    anchors: Tensor


@dataclass(frozen=True)
class GlobalImages:
    """The virtual images of the server, see `GlobalServer`.

    Attributes:
        context: The context in which the method is built.
        count: The number of images of each class.
        is_due: Whether images are distilled in a round.
        steps: Steps of gradient matching in such a round.
        lr: The learning rate of gradient matching.
        momentum: The momentum of gradient matching.
    """

    context: BuildContext
    count: int
    is_due: Callable[[int], bool]
    steps: int
    lr: float
    momentum: float

    def initial_images(self, key: Tensor, dtype: torch.dtype) -> Tensor:
        """Draw the initial images, Gaussian noise."""
        shape = (self.context.classes * self.count, *self.context.shape)
        return keyed_normal(key, IMAGE_STREAM, shape).to(dtype)

    def labelled_copy(self, work: GlobalWork) -> tuple[Tensor, Tensor]:
        """Return a client's copy of the images, and their labels."""
        images = work["anchors"]
        return images, local_images.image_labels(self.context.classes, self.count, images)

    def sending_phase(self) -> Phase:
        """Return the phase in which all clients get images: at first, and after a change."""
        return copy_to_clients(
            "images",
            "anchors",
            lambda round_: round_ == 1 or self.is_due(round_ - 1),
        )

    def distil(self, server: GlobalServer, mean: Variables, round_: int) -> Tensor:
        """Return the images after a round in which distillation is due.

        Their gradient at the weights before the round is brought towards the change of the mean
        model in that round, divided by the learning rate.
        """
        lr = learning_rate(self.context.training, round_)
        target = trees.apply(lambda old, new: (old - new) / lr, server["params"], mean["params"])
        return match_gradient(
            self.context.network,
            server,
            server["images"],
            local_images.image_labels(self.context.classes, self.count, server["images"]),
            target,
            steps=self.steps,
            lr=self.lr,
            momentum=self.momentum,
            key=server["key"] + round_,
        )

    def server_work(self) -> ServerWork:
        """Return the server's work, for the costs of a run."""
        once = replace(self, steps=1)
        return ServerWork(
            lambda round_: self.steps if self.is_due(round_) else 0,
            lambda server: once.distil(server, server, 1),
        )


def train_on_local_and_global(
    pass_: Pass[RecipeWork, RecipeUpload],
    global_images: GlobalImages,
    images: int,
    is_due: Callable[[int], bool],
) -> Pass[RecipeWork, RecipeUpload]:
    """Train on a client's images and its copy of the global ones.

    Args:
        pass_: The pass to change.
        global_images: The global images.
        images: The number of a client's own images of each class.
        is_due: Whether the pass takes place in a round.
    """
    context, counts = global_images.context, (images, global_images.count)
    classes = context.classes

    def begin(server: GlobalServer, client: GlobalClient) -> GlobalWork:
        work = pass_.begin(server, client)
        return {**work, "images": client["images"], "anchors": client["anchors"]}

    def all_images(work: GlobalWork) -> tuple[Tensor, Tensor]:
        x = torch.cat([work["images"], work["anchors"]])
        return x, torch.cat([local_images.image_labels(classes, count, x) for count in counts])

    count = classes * sum(counts)
    return local_images.train_on_images(
        replace(pass_, begin=begin), context, all_images, count, is_due
    )


def match_gradient(
    network: Network,
    variables: Tree,
    images: Tensor,
    labels: Tensor,
    target: Tree,
    *,
    steps: int,
    lr: float,
    momentum: float,
    key: Tensor,
) -> Tensor:
    """Move images by ``steps`` steps so that their gradient approaches ``target``.

    The gradient is that of one cross-entropy over all classes, at ``variables``.
    `gradient_distance` compares it with the target.

    B. Zhao, K. R. Mopuri, H. Bilen. Dataset Condensation with Gradient Matching. ICLR 2021.
    arXiv:2006.05929.

    Args:
        network: The network.
        variables: Its parameters and buffers.
        images: The images to begin with, [n, channels, height, width].
        labels: Their classes, [n].
        target: The target gradient, a tree like the parameters.
        steps: The number of steps.
        lr: The learning rate.
        momentum: The momentum.
        key: A key, int64, for random numbers in the network.
    """
    optimizer = sgd(momentum)
    params: Tree = {"images": images}
    state = optimizer.init(params)
    weights = trees.apply(lambda leaf: leaf.detach().requires_grad_(), variables["params"])
    goal = trees.leaves(target)
    for step in range(steps):
        x = params["images"].detach().requires_grad_()
        keys = (
            keyed.derive_keys(key, MATCHING_STREAM)
            + step * len(x)
            + torch.arange(len(x), device=x.device)
        )
        with torch.enable_grad():
            output = network.train(weights, variables["buffers"], x, nested=True, key=keys)
            loss = F.cross_entropy(output.outputs, labels)
            grads = torch.autograd.grad(loss, trees.leaves(weights), create_graph=True)
            [grad] = torch.autograd.grad(gradient_distance(grads, goal), [x])
        with torch.no_grad():
            params, state = optimizer.step({"images": x}, {"images": grad}, state, lr)
    return params["images"].detach()
