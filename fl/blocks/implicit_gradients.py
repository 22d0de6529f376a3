"""Gradients of a validation loss by the hyper-parameters of training.

Lorraine, Vicol, Duvenaud. Optimizing Millions of Hyperparameters by Implicit Differentiation.
AISTATS 2020. arXiv:1911.02590.

If training has reached weights w at which d L_T / d w = 0, the implicit function theorem gives
their derivative: d w / d params = -(d2 L_T / d w^2)^-1 d2 L_T / (d params d w). A truncated Neumann
series replaces the inverse.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, vjp

from fl.api import Tree, trees

Loss = Callable[[Tree, Tree], Tensor]
"""(weights, params) -> a scalar."""


def hypergradient(
    train_loss: Loss, val_loss: Loss, weights: Tree, params: Tree, psi: float, terms: int
) -> Tree:
    """Derivative of the validation loss by ``params``, through the trained weights.

    It is d L_V / d params - p d2 L_T / (d params d weights), a tree like ``params``, with p =
    sum_{j=0..terms} v (1 - psi H)^j, v = d L_V / d weights and H the Hessian of L_T. As terms grow,
    psi p tends to v H^-1; p itself is *not* multiplied by psi, as in the code of FedL2P (Lee et al.
    2023, algorithm 2). Nothing is clamped.

    Args:
        train_loss: The training loss L_T of weights and params.
        val_loss: The validation loss L_V of weights and params.
        weights: The trained weights.
        params: The hyper-parameters.
        psi: The step of the series; it converges if psi is below 2 / the largest eigenvalue of H.
        terms: The number of terms of the series after the first; 0 takes v for p.
    """
    v, by_params = grad(val_loss, argnums=(0, 1))(dict(weights), dict(params))
    return trees.apply(torch.add, by_params, response(train_loss, v, weights, params, psi, terms))


def response(
    train_loss: Loss, v: Tree, weights: Tree, params: Tree, psi: float, terms: int
) -> Tree:
    """Return - p d2 L_T / (d params d weights) of `hypergradient`, for a given v."""
    return trees.apply(torch.neg, curvature(train_loss, v, weights, params, psi, terms)[1])


def curvature(
    train_loss: Loss, v: Tree, weights: Tree, params: Tree, psi: float, terms: int
) -> tuple[Tree, Tree]:
    """Return p H and p d2 L_T / (d params d weights), for the p of `hypergradient` and a given v.

    The gradient of the loss is computed once, and its graph kept; each of the ``terms + 1``
    products with it costs about two gradients. The results cannot be differentiated again, which
    saves the graph of the products.
    """
    pull_back = vjp(grad(train_loss), dict(weights), dict(params))[1]
    with torch.no_grad():
        term, total = v, v
        for _ in range(terms):
            product = pull_back(term)[0]
            term = trees.apply(lambda t, h: t - psi * h, term, product)
            total = trees.apply(torch.add, total, term)
        by_weights, by_params = pull_back(total)
    return by_weights, by_params
