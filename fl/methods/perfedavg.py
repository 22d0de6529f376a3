"""Per-FedAvg: a shared model that is good after one gradient step on a client's data.

Fallah, Mokhtari, Ozdaglar. Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach. NeurIPS 2020. arXiv:2002.07948.

Family: personal model. Exchanged: model. Local: nothing. Key: `alpha`.

Each batch is cut in two: the step is taken on the first half, its result is judged on the second,
and the Hessian is that of the first half (the paper draws a third batch for it). A batch of one
sample has nothing to be judged on and teaches nothing. The personalised model is that of an entry
``{method: finetune, start: perfedavg, rounds: 1, local_steps: 1}``.

The paper says nothing about running statistics of batch normalisation. By default they are those of
the second half alone: they then belong to the weights after the step, which are the ones that are
judged and used. PFLlib's code lets both halves move them, one after the other.

Features that a study alters are altered in both halves, by keys of their own; the state of an
alteration adapts to what was seen in the second half.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from fl.api import (
    Alterations,
    Batch,
    BuildContext,
    FedloomError,
    Method,
    Network,
    Output,
    Positive,
    RecipeServer,
    RecipeWork,
    Task,
    Tree,
    Weights,
    declare,
    recipe,
    single_pass,
    trees,
)

Judge = Callable[[Tree], tuple[Tensor, Tree]]


@declare("global", title="Per-FedAvg", tasks="any")
class PerFedAvg:
    """FedAvg of a model that adapts in one step.

    Attributes:
        alpha: Learning rate of the inner step.
        order: Gradient: `second` with the Hessian, `first` without it (FO), or `free` (HF) with a
            difference of two gradients instead of its product.
        statistics: Passes that change statistics of batch normalisation: the `outer` pass, or
            `both`.
        delta: Distance between the two gradients of `free`, in units of the outer gradient.
    """

    alpha: Positive = 0.01
    order: Literal["second", "first", "free"] = "second"
    statistics: Literal["outer", "both"] = "outer"
    delta: Positive = 1e-3

    def build(self, context: BuildContext) -> Method:
        """FedAvg on F(w) = f(w - alpha grad f(w; D); D'), equation 3."""
        size = context.training.batch_size
        if size < 2:
            raise FedloomError(f"perfedavg: batch_size is {size}. Allowed: 2 or more, to be cut")
        if context.terms:
            raise FedloomError("perfedavg: terms are set. Allowed: none, as its loss is its own")
        base, network = recipe(context), context.network.view()
        local, alterations = single_pass(base), Alterations(context.alterations)
        network.alter(alterations.layers)

        meta = MetaLoss(self, network, context.task, alterations)
        return replace(base, passes=(replace(local, loss=meta.loss),))

    def free(
        self, inner_loss: Judge, outer_loss: Any, params: Tree, adapted: Tree, buffers: Weights
    ) -> tuple[Tensor, Tree]:
        """A scalar with the outer loss's value and the gradient d - alpha H d.

        d is the outer gradient, and H d is (g(w + delta d) - g(w - delta d)) / (2 delta), where g
        is the gradient on the first half.
        """

        def judge(weights: Tree) -> tuple[Tensor, Tree]:
            value, aux = outer_loss(weights, buffers)
            return value, {"value": value, "aux": aux}

        outer, second = trees.gradient(judge, adapted)
        shifted_gradients = [
            trees.gradient(
                inner_loss, trees.apply(lambda w, d, s=sign * self.delta: w + s * d, params, outer)
            )[0]
            for sign in (1, -1)
        ]
        slope = trees.apply(
            lambda d, ahead, behind: d - self.alpha * (ahead - behind) / (2 * self.delta),
            outer,
            *shifted_gradients,
        )
        surrogate = trees.inner_product(params, slope)
        return second["value"] + surrogate - surrogate.detach(), second["aux"]


@dataclass(frozen=True, eq=False)
class MetaLoss:
    """Loss F(w) = f(w - alpha grad f(w; D); D') of a step.

    Attributes:
        options: The keys of the method.
        network: The network, with alterations.
        task: The task, whose loss is f.
        alterations: The study's alterations of features.
    """

    options: PerFedAvg
    network: Network
    task: Task
    alterations: Alterations

    def loss(self, server: RecipeServer, work: RecipeWork, batch: Batch) -> tuple[Tensor, Tree]:
        """Return F(w) on a batch that is cut in two."""
        # Every other sample, so that what fills up a last batch falls to both halves.
        halves = (trees.take(batch, slice(i, None, 2)) for i in (0, 1))
        inner, outer = map(self.alterations.change_batch, halves)

        def inner_loss(params: Tree) -> tuple[Tensor, Tree]:
            output, _ = self.forward(work, params, work["buffers"], inner)
            return self.task.loss(output.outputs, inner), output.buffers

        def outer_loss(params: Tree, buffers: Weights) -> tuple[Tensor, Tree]:
            output, observations = self.forward(work, params, buffers, outer)
            aux = {"buffers": output.buffers, "alterations": observations}
            return self.task.loss(output.outputs, outer), aux

        is_second = self.options.order == "second"
        direction, moved = trees.gradient(inner_loss, work["params"], differentiable=is_second)
        adapted = trees.apply(lambda w, g: w - self.options.alpha * g, work["params"], direction)
        buffers = moved if self.options.statistics == "both" else work["buffers"]
        if self.options.order == "free":
            return self.options.free(inner_loss, outer_loss, work["params"], adapted, buffers)
        value, aux = outer_loss(adapted, buffers)
        return value, dict(aux)

    def forward(
        self, work: RecipeWork, params: Tree, buffers: Weights, half_batch: Batch
    ) -> tuple[Output, Tree]:
        """Return the outputs on half of a batch, and what its alterations observe."""
        alter, observations = self.alterations.functions(work.get("alterations", {}), half_batch)
        x, key = half_batch["x"], half_batch.get("key")
        return self.network.train(
            params, buffers, x, nested=True, key=key, alter=alter
        ), observations
