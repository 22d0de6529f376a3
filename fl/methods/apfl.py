"""APFL: each client mixes a model of its own with the shared one.

Deng, Kamani, Mahdavi. Adaptive Personalized Federated Learning. 2020. arXiv:2003.13461.

Family: personal model. Exchanged: model. Local: model, its share of the mixture. Key: `alpha`.

Every batch trains the shared model, as in FedAvg, and the client's own model through the mixture.
Alpha adapts at the first step of each round, by plain gradient descent at the run's rate. The
mixture has running statistics of its own, from its own passes. A client that was never drawn is
scored with the mixture of the initial model and the shared one.

The authors' code (MLOPTPSU/FedTorch) mixes outputs in place of weights (``mixed: outputs``), and
counts clients alike, as here under ``weighting: uniform``. In each step it moves the shared model
first, and the client's own through a mixture with the moved one; here both gradients are those of
one point. Its slope of alpha is the product of the difference of both models after their steps with
alpha times the gradient of the own model plus 1 - alpha times that of the shared one, plus .02
alpha; here it is the derivative of the mixture's loss, as in the paper. PFLlib's code trains the
client's own model alone and overwrites it by the mixture after each round.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal, TypedDict, cast

from torch import Tensor

from fl.api import (
    AdaptiveTerm,
    Batch,
    BuildContext,
    Forward,
    Method,
    Predictor,
    Rate,
    RecipeClient,
    RecipeServer,
    RecipeWork,
    Share,
    StepResults,
    Tree,
    Variables,
    Weights,
    consumes_gradients,
    declare,
    recipe,
    shared_model,
    single_pass,
    stack_gradients_of,
    task_loss,
    trees,
    with_stack_gradients,
)


class OwnModel(TypedDict):
    """Parameters of a client's own, which it trains beside the shared model w.

    Attributes:
        v: Its own model, by name.
        alpha: Share alpha of v in the mixture, [].
    """

    v: Weights
    alpha: Tensor


class APFLWork(RecipeWork):
    """State of a client's pass.

    Attributes:
        first: 1 in the first step, in which alpha adapts, then 0, [].
    """

    first: Tensor


class APFLModels(Variables):
    """Models of which the outputs are mixed: the shared one, and a client's own.

    Attributes:
        personal_params: The client's own model.
        own_buffers: Buffers of that.
    """

    personal_params: OwnModel
    own_buffers: Weights


@declare("global", "personal", title="APFL", tasks="any")
class APFL:
    """FedAvg beside a model of each client's own, mixed for evaluation.

    Attributes:
        alpha: Share of the client's own model in the mixture, before round 1 if it adapts; 0 is
            FedAvg, 1 is Local.
        adapt: Whether clients adapt alpha.
        mixed: Whether `weights` of both models are mixed, as in the paper, or their `outputs`.
    """

    alpha: Share = 0.5
    adapt: bool = True
    mixed: Literal["weights", "outputs"] = "weights"

    def build(self, context: BuildContext) -> Method:
        """V <- v - eta grad_v f(alpha v + (1 - alpha) w), algorithm 1, beside FedAvg for w."""
        network = context.network
        own_pass = AdaptiveTerm(
            "mixture",
            lambda variables: {"buffers": variables["buffers"]},
            partial(self.mixture_loss, context),
            lambda state, statistics: statistics,
        )
        base = recipe(context, terms=(task_loss, own_pass), personal_params=self.own_model)
        local = single_pass(base)

        def begin(server: RecipeServer, client: RecipeClient) -> APFLWork:
            work = local.begin(server, client)
            return {**work, "first": trees.leaves(work["params"])[0].new_ones(())}

        @consumes_gradients
        def update(
            server: RecipeServer, work: APFLWork, grads: Tree, aux: StepResults, lr: Rate
        ) -> APFLWork:
            own_params, slope = work["params"]["personal_params"], grads["personal_params"]["alpha"]
            step = work["first"] * lr if self.adapt else 0
            alpha = (own_params["alpha"] - step * slope).clamp(0, 1)
            work = {**work, **local.update(server, work, grads, aux, lr)}
            next_own = {**work["params"]["personal_params"], "alpha": alpha}
            params = {**work["params"], "personal_params": next_own}
            return {**work, "params": params, "first": 0 * work["first"]}

        def gradients(
            server: RecipeServer, work: APFLWork, batch: Batch
        ) -> tuple[Tensor, Tree, Tree] | None:
            """By v, alpha g; by alpha, <g, v - w>; with g the gradient by the mixture."""
            own_params = cast(OwnModel, work["params"]["personal_params"])
            w = {name: work["params"][name] for name in network.names["params"]}
            v, alpha = own_params["v"], own_params["alpha"]
            mixed = by_hand and by_hand(server, {**work, "params": mixture(own_params, w)}, batch)
            shared = by_hand and by_hand(server, {**work, "params": w}, batch)
            if not mixed or not shared:
                return None
            own_loss, g, statistics = mixed
            loss, grads, aux = shared
            slope = trees.inner_products(g, v) - trees.inner_products(g, w)
            by_v = trees.apply(lambda leaf: leaf.mul_(trees.align(alpha, leaf)), g)
            return (
                loss + own_loss,
                {**grads, "personal_params": {"v": by_v, "alpha": slope}},
                {**aux, "terms": {"mixture": {"buffers": statistics["buffers"]}}},
            )

        def predict(models: APFLModels, memory: Tree, x: Tensor) -> Tensor:
            v, alpha = models["personal_params"]["v"], models["personal_params"]["alpha"]
            personal = network.eval(v, models["own_buffers"], x)
            shared = network.eval(models["params"], models["buffers"], x)
            return alpha * personal.outputs + (1 - alpha) * shared.outputs

        view = mixed_model if self.mixed == "weights" else Predictor(both_models, predict)
        by_hand = stack_gradients_of(single_pass(recipe(context)).loss)
        step = replace(local, begin=begin, update=update)
        if self.mixed == "weights" and not context.terms:
            step = replace(step, loss=with_stack_gradients(local.loss, gradients))
        return replace(base, passes=(step,), views={"global": shared_model, "personal": view})

    def own_model(self, variables: Variables) -> OwnModel:
        """Return a client's own parameters before round 1: the initial model, and alpha."""
        alpha = trees.leaves(variables["params"])[0].new_tensor(self.alpha)
        return {"v": variables["params"], "alpha": alpha}

    def mixture_loss(
        self, context: BuildContext, forward: Forward, state: Tree
    ) -> tuple[Tensor, Tree]:
        """Return f(alpha v + (1 - alpha) w) with w fixed, and the buffers of the mixture."""
        network, batch = context.network, forward.batch
        own_params = cast(OwnModel, forward.personal_params)
        w = trees.apply(Tensor.detach, forward.params)
        x, key = batch["x"], batch.get("key")
        if self.mixed == "weights":
            output = network.train(mixture(own_params, w), state["buffers"], x, key=key)
            return context.task.loss(output.outputs, batch), {"buffers": output.buffers}
        personal = network.train(own_params["v"], state["buffers"], x, key=key)
        shared = network.train(w, state["buffers"], x, key=key)
        alpha = own_params["alpha"]
        outputs = alpha * personal.outputs + (1 - alpha) * shared.outputs
        return context.task.loss(outputs, batch), {"buffers": personal.buffers}


def mixed_model(server: RecipeServer, client: RecipeClient) -> Variables:
    """Return the client's mixture, with buffers of its own, as a view."""
    buffers = client["terms"]["mixture"]["buffers"]
    return {"params": mixture(client["personal_params"], server["params"]), "buffers": buffers}


def both_models(server: RecipeServer, client: RecipeClient) -> APFLModels:
    """Return the shared model and the client's own, as a view."""
    buffers = client["terms"]["mixture"]["buffers"]
    own_params = client["personal_params"]
    return {**shared_model(server, None), "personal_params": own_params, "own_buffers": buffers}


def mixture(own_params: OwnModel, w: Weights) -> Weights:
    """Return the weights alpha v + (1 - alpha) w."""
    return trees.interpolate(w, own_params["v"], own_params["alpha"])
