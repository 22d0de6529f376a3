"""Virtual images that the server distils from the rounds' updates and sends to every client.

C.-Y. Huang, R. Jin, C. Zhao, D. Xu, X. Li. Federated Learning on Virtual Heterogeneous Data with
Local-Global Dataset Distillation. TMLR 2024. arXiv:2303.02278 (section 3.3.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fl.api import BuildContext, Pass, Phase, ServerWork, Sweep, Tree, keyed, learning_rate, trees
from fl.blocks import local_images
from fl.blocks.exchange import aggregate_nothing
from fl.blocks.gradient_matching import match_gradient
from fl.blocks.keyed_random import keyed_normal
from fl.blocks.local_images import VIRTUAL_IMAGES

GLOBAL_IMAGES = "anchors"
"""Key in a client's tree: its latest copy of the global images."""
IMAGE_STREAM = keyed.stream_number("global images")


@dataclass(frozen=True)
class GlobalImages:
    """The server's images, under `VIRTUAL_IMAGES` in its tree, which also has a ``key``.

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

    def labelled_copy(self, work: Tree) -> tuple[Tensor, Tensor]:
        """Return a client's copy of the images, from its work tree, and their labels."""
        images = work[GLOBAL_IMAGES]
        return images, local_images.image_labels(self.context.classes, self.count, images)

    def sending_phase(self) -> Phase:
        """Return the phase in which all clients get images: at first, and after a change."""

        def end(server: Tree, client: Tree, upload: Tree, totals: Tree) -> tuple[Tree, Tree]:
            return {**client, GLOBAL_IMAGES: server[VIRTUAL_IMAGES]}, {}

        def look(server: Tree, client: Tree, upload: Tree, batch: Any) -> Tree:
            return {"samples": batch["weight"].sum()}

        return Phase(
            (Sweep(look, end, split="none"),),
            aggregate_nothing,
            is_active=lambda round_: round_ == 1 or self.is_due(round_ - 1),
            send=lambda server: {VIRTUAL_IMAGES: server[VIRTUAL_IMAGES]},
            all_clients=True,
        )

    def distil(self, server: Tree, mean: Tree, round_: int) -> Tensor:
        """Return the images after a round in which distillation is due.

        Their gradient at the weights before the round is brought towards the change of the mean
        model in that round, divided by the learning rate.
        """
        lr = learning_rate(self.context.training, round_)
        target = trees.apply(lambda old, new: (old - new) / lr, server["params"], mean["params"])
        return match_gradient(
            self.context.network,
            server,
            server[VIRTUAL_IMAGES],
            local_images.image_labels(self.context.classes, self.count, server[VIRTUAL_IMAGES]),
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
    pass_: Pass, shared: GlobalImages, images: int, is_due: Callable[[int], bool]
) -> Pass:
    """Train on a client's images and its copy of the global ones.

    Args:
        pass_: The pass to change.
        shared: The global images.
        images: The number of a client's own images of each class.
        is_due: Whether the pass takes place in a round.
    """
    classes, counts = shared.context.classes, (images, shared.count)

    def begin(server: Tree, client: Tree) -> Tree:
        return {
            **pass_.begin(server, client),
            **{k: client[k] for k in (VIRTUAL_IMAGES, GLOBAL_IMAGES)},
        }

    def all_images(work: Tree) -> tuple[Tensor, Tensor]:
        x = torch.cat([work[VIRTUAL_IMAGES], work[GLOBAL_IMAGES]])
        return x, torch.cat([local_images.image_labels(classes, count, x) for count in counts])

    count = classes * sum(counts)
    return local_images.train_on_images(
        replace(pass_, begin=begin), shared.context, all_images, count, is_due
    )
