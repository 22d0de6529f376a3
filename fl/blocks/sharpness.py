"""Sharpness-aware minimisation: steps by the gradient at the worst nearby point.

Foret, Kleiner, Mobahi, Neyshabur. Sharpness-Aware Minimization for Efficiently Improving
Generalization. ICLR 2021. arXiv:2010.01412.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from fl.api import Batch, Pass, Tree, trees

MIN_NORM = 1e-12
"""The smallest norm of a gradient by which a step divides."""


AnyPass = TypeVar("AnyPass", bound=Pass)

Direction = Callable[[Any, Any, Tree], Tree]
"""(server, work, gradient) -> the direction of a perturbation, for ONE client."""


def sharpness_aware(
    pass_: AnyPass,
    radius: float,
    update_buffers_twice: bool = True,
    share: float = 1.0,
    direction: Direction | None = None,
) -> AnyPass:
    """Return the pass with loss and gradient at w + radius g/||g||, where g is the gradient at w.

    No gradient flows through g. A step makes two passes over the batch, with the same random
    numbers.

    Args:
        pass_: The pass to change.
        radius: The distance of the worst point.
        update_buffers_twice: Whether both passes move running statistics, one after the other, or
            only the first.
        share: Weight of the worst point; the loss at w itself has the rest.
        direction: Function that replaces g by another direction; `update` then gets e = radius d /
            ||d|| as ``aux["perturbation"]``.
    """

    def loss(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        def loss_at(params: Tree) -> tuple[Tensor, Tree]:
            return pass_.loss(server, {**work, "params": params}, batch)

        gradient, first = trees.gradient(loss_at, work["params"])
        ascent = direction(server, work, gradient) if direction else gradient
        scale = radius / tree_norm(ascent).clamp(min=MIN_NORM)
        perturbed = trees.apply(lambda w, d: w + scale * d, work["params"], ascent)
        value, aux = pass_.loss(
            server, {**work, "params": perturbed, "buffers": first["buffers"]}, batch
        )
        if share < 1:
            value = share * value + (1 - share) * pass_.loss(server, work, batch)[0]
        if not update_buffers_twice:
            aux = {**aux, "buffers": first["buffers"]}
        if direction:
            aux = {**aux, "perturbation": trees.apply(lambda d: scale * d, ascent)}
        return value, aux

    return replace(pass_, loss=loss)


def tree_norm(tree: Tree) -> Tensor:
    """Euclidean norm of all leaves together, a scalar."""
    return trees.squared_norm(tree).sqrt()
