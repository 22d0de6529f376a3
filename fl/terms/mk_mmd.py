"""Drift of features as a distribution: MK-MMD, with kernels weighted to separate the two models.

Ayromlou, Emerson. Adaptive Latent-Space Constraints in Personalized FL. 2025 (section 3.3).

The shared model is the one that the server sent this round, frozen, in evaluation mode; the
client's model is in training mode. Kernel weights start uniform (in the released code at random)
and persist from round to round, and no gradient flows through them. Samples that fill up a last
batch count.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fl.api import (
    ALL_TASKS,
    AdaptiveTerm,
    Bound,
    BuildContext,
    Count,
    Forward,
    NonNegative,
    Periodic,
    Tree,
    Variables,
    Weights,
)
from fl.blocks.drift import Drift, LayerFeatures, check_two_samples, update_where_different
from fl.blocks.mmd import (
    GRID,
    Convention,
    kernel_statistics,
    mk_mmd2,
    optimal_kernel_weights,
    optimal_kernel_weights_cvxpy,
)


@dataclass(frozen=True)
class MKMMD:
    """The penalty mu sum_l MK-MMD^2 of layer l.

    Attributes:
        layers: names of the model's modules whose features are held.
        mu: its weight.
        update: when kernel weights are updated: after every `step` on its batch (the paper's -1),
            `periodic` on batches drawn for it, in evaluation mode (its 20), or `never`: they stay
            1/r.
        every: steps between periodic updates.
        first: the step of a round after which the first periodic update comes.
        batches: batches of a periodic update.
        kernels: r, the number of kernels, from the beginning of the grid 2^-3.5, 2^-3.25, ..., 2^1.
        ridge: epsilon of equation 1.
        convention: `multiply` for exp(-gamma d^2), `divide` for exp(-d^2 / gamma).
        normalise: whether features are scaled to length 1.
        biased: whether the estimate includes pairs of a sample with itself.
        solver: of the quadratic problem for the weights; `cvxpy` is slow, for comparison.
    """

    layers: tuple[str, ...]
    mu: NonNegative = 0.1
    update: Literal["step", "periodic", "never"] = "step"
    every: Count = 20
    first: Count = 2
    batches: Count = 50
    kernels: Annotated[int, Bound(low=1, high=len(GRID))] = len(GRID)
    ridge: NonNegative = 1e-3
    convention: Convention = "multiply"
    normalise: bool = True
    biased: bool = True
    solver: Literal["exact", "cvxpy"] = "exact"

    title: ClassVar = "MK-MMD"
    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> AdaptiveTerm:
        """Return the term, with the kernel weights of every layer as its state."""
        check_two_samples(context, "mk-mmd")
        drift = Drift.tapping(context, self.layers, self.normalise)
        gammas = GRID[: self.kernels]
        estimate = partial(mk_mmd2, convention=self.convention, biased=self.biased)
        evaluate = partial(kernel_statistics, convention=self.convention, biased=self.biased)
        solve = optimal_kernel_weights if self.solver == "exact" else optimal_kernel_weights_cvxpy

        def start(variables: Variables) -> Weights:
            example = next(iter(variables["params"].values()))
            return dict.fromkeys(self.layers, example.new_full((self.kernels,), 1 / self.kernels))

        def term(forward: Forward, state: Weights) -> tuple[Tensor, Tree]:
            layers = drift.features(forward)
            penalties = [
                estimate(pair["own"], pair["shared"], gammas, state[name])
                for name, pair in layers.items()
            ]
            return self.mu * torch.stack(penalties).sum(), dict(layers)

        def adapt(state: Weights, layers: LayerFeatures) -> Weights:
            next_state: Weights = {}
            for name, pair in layers.items():
                statistics, covariance = evaluate(pair["own"], pair["shared"], gammas)
                solved = {name: solve(statistics, covariance, self.ridge)}
                new = update_where_different(solved, {name: state[name]}, pair)
                next_state = {**next_state, **new}
            return next_state

        periodic = Periodic(self.every, self.first, self.batches, drift.look)
        refresh = periodic if self.update == "periodic" else None
        adapt_state = keep_state if self.update == "never" else adapt
        return AdaptiveTerm(
            "mk-mmd", start, term, adapt_state, refresh, drift.reference, self.layers
        )


def keep_state(state: Weights, layers: LayerFeatures) -> Weights:
    """Return the state as it is."""
    return state
