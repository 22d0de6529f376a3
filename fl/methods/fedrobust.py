"""FedRobust: clients train against an affine shift of their inputs that is made to hurt.

Reisizadeh, Farnia, Pedarsani, Jadbabaie. Robust Federated Learning: The Case of Affine Distribution
Shifts. NeurIPS 2020. arXiv:2006.08907.

Family: features. Exchanged: model. Local: affine shift of inputs. Key: `eta2`.

As in algorithm 1, every step goes down in w and, from the same point, up in the client's own
(Lambda, delta), which stay with the client; tests are on inputs as they are. Clients are weighted
by their samples, where the paper counts them alike. The reported training loss does not include the
penalty.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    FedloomError,
    Method,
    NonNegative,
    Positive,
    Rate,
    RecipeServer,
    RecipeWork,
    StepResults,
    Tree,
    Variables,
    Weights,
    declare,
    recipe,
    single_pass,
    trees,
)

LARGEST = 4096
"""The largest size of an input for which every client holds a full matrix."""


@declare("global", tasks="any", one_input=True)
class FedRobust:
    """Training against affine distribution shifts.

    Attributes:
        lam: Weight lambda of the penalty lambda (||Lambda - I||^2 + ||delta||^2).
        eta2: Learning rate of the ascent steps; the run's own rate is that of the descent steps.
        matrix: Form of Lambda: `full` as in the paper, or `diagonal` for large inputs.
    """

    lam: NonNegative = 1.0
    eta2: Positive = 0.01
    matrix: Literal["full", "diagonal"] = "full"

    def build(self, context: BuildContext) -> Method:
        """FedAvg on f_k(w; Lambda x + delta) - lambda (||Lambda - I||^2 + ||delta||^2)."""
        size = math.prod(context.shape)
        if context.network.uses_tokens:
            raise FedloomError("fedrobust: inputs are tokens. Allowed: numbers, which can shift")
        if self.matrix == "full" and size > LARGEST:
            raise FedloomError(
                f"fedrobust: matrix is 'full', of {size} x {size} numbers. Allowed: diagonal, or "
                f"inputs of at most {LARGEST} numbers"
            )

        def identity_shift(variables: Variables) -> Weights:
            template = trees.leaves(variables["params"])[0]
            diagonal = template.new_ones(size)
            matrix = torch.diag(diagonal) if self.matrix == "full" else diagonal
            return {"matrix": matrix, "shift": torch.zeros_like(diagonal)}

        base = recipe(context, personal_params=identity_shift)
        local = single_pass(base)

        def loss(server: RecipeServer, work: RecipeWork, batch: Batch) -> tuple[Tensor, Tree]:
            shift = work["params"]["personal_params"]
            x = shifted(batch["x"], shift["matrix"], shift["shift"])
            value, aux = local.loss(server, work, {**batch, "x": x})
            return value - self.lam * strength(shift["matrix"], shift["shift"]), aux

        def update(
            server: RecipeServer, work: RecipeWork, grads: Tree, aux: StepResults, lr: Rate
        ) -> RecipeWork:
            updated = local.update(server, work, grads, aux, lr)
            up = trees.apply(
                lambda p, g: p + self.eta2 * g,
                work["params"]["personal_params"],
                grads["personal_params"],
            )
            return {**updated, "params": {**updated["params"], "personal_params": up}}

        return replace(base, passes=(replace(local, loss=loss, update=update),))


def shifted(x: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
    """Lambda x + delta for x [b, ...], of d numbers each; Lambda [d, d] or its diagonal [d]."""
    flat = x.flatten(1)
    turned = flat @ matrix.T if matrix.dim() == 2 else flat * matrix
    return (turned + shift).reshape(x.shape)


def strength(matrix: Tensor, shift: Tensor) -> Tensor:
    """||Lambda - I||^2 + ||delta||^2, a scalar."""
    diagonal = torch.ones_like(shift)
    identity = torch.diag(diagonal) if matrix.dim() == 2 else diagonal
    return (matrix - identity).square().sum() + shift.square().sum()
