"""APFL: each client mixes a model of its own with the shared one.

Deng, Kamani, Mahdavi. Adaptive Personalized Federated Learning. 2020. arXiv:2003.13461.

Family: personal model. Exchanged: model. Local: model, its share of the mixture. Key: `alpha`.

Every batch trains the shared model, as in FedAvg, and the client's own model through the mixture.
Alpha adapts at the first step of each round, by plain gradient descent at the run's rate. The
mixture has running statistics of its own, from its own passes. The authors' code
(MLOPTPSU/FedTorch) mixes outputs in place of weights (``mixed: outputs``); PFLlib's trains the
client's own model alone and overwrites it by the mixture after each round. A client that was never
drawn is scored with the mixture of the initial model and the shared one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from torch import Tensor

from fl.api import (
    PERSONAL_PARAMS,
    AdaptiveTerm,
    BuildContext,
    Forward,
    Method,
    Predictor,
    Rate,
    Share,
    Tree,
    declare,
    recipe,
    shared,
    single_pass,
    task_loss,
    trees,
)


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

        def own_model(variables: Tree) -> Tree:
            alpha = trees.leaves(variables["params"])[0].new_tensor(self.alpha)
            return {"v": variables["params"], "alpha": alpha}

        def outputs(
            private: Tree, w: Tree, buffers: Tree, x: Tensor, key: Tensor | None
        ) -> tuple[Tensor, Tree]:
            """Outputs of the mixture in training mode, and its buffers."""
            alpha = private["alpha"]
            if self.mixed == "weights":
                output = network.train(mixture(private, w), buffers, x, key=key)
                return output.outputs, output.buffers
            first = network.train(private["v"], buffers, x, key=key)
            second = network.train(w, buffers, x, key=key)
            return alpha * first.outputs + (1 - alpha) * second.outputs, first.buffers

        def term(forward: Forward, state: Tree) -> tuple[Tensor, Tree]:
            fixed = trees.apply(Tensor.detach, forward.params)
            batch = forward.batch
            mixed, buffers = outputs(
                forward.personal_params, fixed, state["buffers"], batch["x"], batch.get("key")
            )
            return context.task.loss(mixed, batch), {"buffers": buffers}

        own_pass = AdaptiveTerm(
            "mixture",
            lambda variables: {"buffers": variables["buffers"]},
            term,
            lambda state, statistics: statistics,
        )
        base = recipe(context, terms=(task_loss, own_pass), personal_params=own_model)
        local = single_pass(base)

        def begin(server: Tree, client: Tree) -> Tree:
            work = local.begin(server, client)
            return {**work, "first": trees.leaves(work["params"])[0].new_ones(())}

        def update(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
            private, slope = work["params"][PERSONAL_PARAMS], grads[PERSONAL_PARAMS]["alpha"]
            step = work["first"] * lr if self.adapt else 0
            alpha = (private["alpha"] - step * slope).clamp(0, 1)
            next_work = local.update(server, work, grads, aux, lr)
            params = next_work["params"]
            next_own = {**params[PERSONAL_PARAMS], "alpha": alpha}
            return {
                **next_work,
                "params": {**params, PERSONAL_PARAMS: next_own},
                "first": 0 * work["first"],
            }

        def personal(server: Tree, client: Tree | None) -> Tree:
            client = client or {}
            private, buffers = client[PERSONAL_PARAMS], client["terms"]["mixture"]["buffers"]
            if self.mixed == "outputs":
                return {
                    **shared(server, None),
                    PERSONAL_PARAMS: dict(private),
                    "own_buffers": buffers,
                }
            return {"params": mixture(private, server["params"]), "buffers": buffers}

        def predict(variables: Tree, memory: Tree, x: Tensor) -> Tensor:
            private, alpha = variables[PERSONAL_PARAMS], variables[PERSONAL_PARAMS]["alpha"]
            first = network.eval(private["v"], variables["own_buffers"], x)
            second = network.eval(variables["params"], variables["buffers"], x)
            return alpha * first.outputs + (1 - alpha) * second.outputs

        view = Predictor(personal, predict) if self.mixed == "outputs" else personal
        step = replace(local, begin=begin, update=update)
        return replace(base, passes=(step,), views={"global": shared, "personal": view})


def mixture(private: Tree, w: Tree) -> Tree:
    """Return the weights alpha v + (1 - alpha) w."""
    alpha = private["alpha"]
    return trees.apply(lambda v, w: alpha * v + (1 - alpha) * w, private["v"], w)
