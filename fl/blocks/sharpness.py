"""Sharpness-aware minimisation: steps by the gradient at the worst nearby point.

Foret, Kleiner, Mobahi, Neyshabur. Sharpness-Aware Minimization for Efficiently Improving
Generalization. ICLR 2021. arXiv:2010.01412.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.func import grad

from fl.api import Batch, Pass, Tree, trees

MIN_NORM = 1e-12
"""The smallest norm of a gradient by which a step divides."""


def sharpness_aware(
    pass_: Pass, radius: float, update_buffers_twice: bool = True, share: float = 1.0
) -> Pass:
    """Return the pass with loss and gradient at w + radius g/||g||, where g is the gradient at w.

    No gradient flows through g. A step makes two passes over the batch, with the same random
    numbers.

    Args:
        pass_: The pass to change.
        radius: The distance of the worst point.
        update_buffers_twice: Whether both passes move running statistics, one after the other, or
            only the first.
        share: Weight of the worst point; the loss at w itself has the rest.
    """

    def loss(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        def loss_at(params: Tree) -> tuple[Tensor, Tree]:
            return pass_.loss(server, {**work, "params": params}, batch)

        weights = trees.apply(Tensor.detach, work["params"])
        gradient, first = grad(loss_at, has_aux=True)(weights)
        gradient = trees.apply(Tensor.detach, gradient)
        scale = radius / tree_norm(gradient).clamp(min=MIN_NORM)
        perturbed = trees.apply(lambda w, g: w + scale * g, work["params"], gradient)
        value, aux = pass_.loss(
            server, {**work, "params": perturbed, "buffers": first["buffers"]}, batch
        )
        if share < 1:
            value = share * value + (1 - share) * pass_.loss(server, work, batch)[0]
        return value, aux if update_buffers_twice else {**aux, "buffers": first["buffers"]}

    return replace(pass_, loss=loss)


def tree_norm(tree: Tree) -> Tensor:
    """Euclidean norm of all leaves together, a scalar."""
    return torch.stack([leaf.square().sum() for leaf in trees.leaves(tree)]).sum().sqrt()
