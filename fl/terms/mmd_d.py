"""Drift of features as a distribution: MMD-D, with a deep kernel that separates the two models.

Ayromlou, Emerson. Adaptive Latent-Space Constraints in Personalized FL. 2025 (section 3.4).

As in the released code, the safeguard kernel multiplies both terms (`form`), one AdamW trains the
whole kernel, and the samples of the shared model are reordered before each of its steps (here by
one position more each time, which needs no random numbers). Kernel and optimizer stay with the
client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypedDict

import torch
from torch import Tensor

from fl.api import (
    ALL_TASKS,
    AdaptiveTerm,
    BuildContext,
    Count,
    Forward,
    NonNegative,
    Optimizer,
    Periodic,
    Positive,
    Tree,
    Variables,
    adamw,
    rng,
    trees,
)
from fl.blocks.distances import three_distances
from fl.blocks.drift import (
    Drift,
    apply_in_groups,
    check_two_samples,
    update_where_different,
)
from fl.blocks.mmd import DeepKernel
from fl.pytorch.folding import call_on_stacks

WEIGHT_DECAY = 0.01
"""AdamW's weight decay, PyTorch's default, which the released code does not change."""

DISTANCES_AT_ONCE = 2**26
"""Distances between samples of clients that are held in memory at once.

It is a constant, because the grouping of clients may decide the last bits of a result.
"""


class LayerKernel(TypedDict):
    """State of a layer.

    Attributes:
        kernel: Parameters of its kernel, see `fl.blocks.deep_kernel.DeepKernel`.
        optimizer: State of the kernel's optimizer.
    """

    kernel: Tree
    optimizer: Tree


@dataclass(frozen=True)
class MMDD:
    """The penalty mu sum_l MMD-D^2 of layer l.

    Attributes:
        layers: names of the model's modules whose features are held.
        mu: its weight.
        steps: steps of AdamW on the kernel, at every update.
        lr: AdamW's learning rate on the kernel.
        update: when the kernel is updated: `periodic` on batches drawn for it, in evaluation mode,
            or after every `step` on its batch.
        every: steps between periodic updates.
        first: the step of a round after which the first periodic update comes.
        batches: batches of a periodic update.
        form: form of the kernel: `product` in the released code, `sum` in equation 2.
        normalise: whether features are scaled to length 1.
    """

    layers: tuple[str, ...]
    mu: NonNegative = 0.1
    steps: Count = 5
    lr: Positive = 1e-3
    update: Literal["periodic", "step"] = "periodic"
    every: Count = 20
    first: Count = 2
    batches: Count = 50
    form: Literal["product", "sum"] = "product"
    normalise: bool = False

    title: ClassVar = "MMD-D"
    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> AdaptiveTerm:
        """Return the term, with a kernel and its optimizer for every layer as its state."""
        check_two_samples(context, "mmd-d")
        drift = Drift.tapping(context, self.layers, self.normalise)
        steps = MMDDSteps(self, context, drift, adamw(WEIGHT_DECAY))
        is_periodic = self.update == "periodic"
        refresh = Periodic(self.every, self.first, self.batches, drift.look)
        return AdaptiveTerm(
            "mmd-d",
            steps.start,
            steps.term,
            steps.adapt_in_groups if is_periodic else steps.adapt,
            refresh if is_periodic else None,
            drift.reference,
            self.layers,
        )


@dataclass(frozen=True, eq=False)
class MMDDSteps:
    """Functions of the term.

    Attributes:
        options: The keys of the term.
        context: The context in which the method is built.
        drift: The features that are compared.
        optimizer: The optimizer of the kernels.
    """

    options: MMDD
    context: BuildContext
    drift: Drift
    optimizer: Optimizer

    def start(self, variables: Variables) -> dict[str, LayerKernel]:
        """Return a first kernel for every layer."""
        example, width = (
            next(iter(variables["params"].values())),
            self.drift.widths(self.context, variables),
        )
        state: dict[str, LayerKernel] = {}
        for name in self.options.layers:
            seed = rng.torch_seed(self.context.seed, "deep kernel", name)
            kernel = trees.to(DeepKernel.start(width[name], seed, example.dtype), example.device)
            state[name] = {"kernel": kernel, "optimizer": self.optimizer.init(kernel)}
        return state

    def squared(self, kernel: Tree, pair: Mapping[str, Tensor]) -> Tensor:
        """Return MMD-D^2 of a layer."""

        def mmd2(x: Tensor, y: Tensor, *leaves: Tensor) -> Tensor:
            return DeepKernel(kernel, self.options.form).with_params(leaves).mmd2(x, y)

        return call_on_stacks(mmd2, pair["own"], pair["shared"], *trees.leaves(kernel))

    def term(self, forward: Forward, state: Mapping[str, LayerKernel]) -> tuple[Tensor, Tree]:
        """Return mu sum_l MMD-D^2 of layer l, and the features for the update."""
        layers = self.drift.features(forward)
        penalties = [self.squared(state[name]["kernel"], pair) for name, pair in layers.items()]
        return self.options.mu * torch.stack(penalties).sum(), dict(layers)

    def train_kernel(self, state: LayerKernel, pair: Mapping[str, Tensor]) -> Tree:
        """Return one layer's kernel after ``steps`` steps that increase equation 3."""
        kernel, moments, x, y = state["kernel"], state["optimizer"], pair["own"], pair["shared"]
        plain = three_distances(x, y)
        for shift in range(1, self.options.steps + 1):
            _, up = DeepKernel(kernel, self.options.form).ascent(x, y, shift=shift, plain=plain)
            kernel, moments = self.optimizer.step(
                kernel, trees.apply(torch.neg, up), moments, self.options.lr
            )
        return update_where_different({"kernel": kernel, "optimizer": moments}, state, pair)

    def adapt(self, state: Tree, layers: Tree) -> Tree:
        """Return the kernels after an update."""
        return {name: self.train_kernel(state[name], pair) for name, pair in layers.items()}

    def adapt_in_groups(self, state: Tree, layers: Tree) -> Tree:
        """Return the kernels after an update, for some clients at a time."""
        rows = trees.leaves(layers)[0].shape[-2]
        return apply_in_groups(
            self.adapt, state, layers, max(1, DISTANCES_AT_ONCE // (3 * rows * rows))
        )
