"""Steps by the gradient at the worst point nearby: sharpness-aware minimisation.

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
"""The least norm of a gradient, so that one can divide by it."""


def sharpness_aware(pass_: Pass, radius: float, both: bool = True) -> Pass:
    """The pass, with the loss and the gradient at w + radius g/||g||, where g is the gradient at w.

    No gradient is taken through g. The batch is looked at twice, and both looks draw the same
    random numbers.

    Args:
        both: Whether both looks move running statistics, one after the other, or the first alone.
    """

    def loss(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        def before(params: Tree) -> tuple[Tensor, Tree]:
            return pass_.loss(server, {**work, "params": params}, batch)

        still = trees.apply(Tensor.detach, work["params"])
        uphill, first = grad(before, has_aux=True)(still)
        uphill = trees.apply(Tensor.detach, uphill)
        scale = radius / tree_norm(uphill).clamp(min=MIN_NORM)
        worst = trees.apply(lambda w, g: w + scale * g, work["params"], uphill)
        value, aux = pass_.loss(
            server, {**work, "params": worst, "buffers": first["buffers"]}, batch
        )
        return value, aux if both else {**aux, "buffers": first["buffers"]}

    return replace(pass_, loss=loss)


def tree_norm(tree: Tree) -> Tensor:
    """The Euclidean norm of all leaves together, a scalar."""
    return torch.stack([leaf.square().sum() for leaf in trees.leaves(tree)]).sum().sqrt()
