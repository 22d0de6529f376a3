"""FedAvg beside a private model of each client, when both learn from each other's outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    AdaptiveTerm,
    Batch,
    BuildContext,
    Forward,
    Output,
    Recipe,
    RecipeClient,
    RecipeServer,
    Tree,
    Variables,
    Weights,
    recipe,
    shared_model,
    weighted_mean,
)


def with_private_model(
    context: BuildContext,
    loss: Callable[[Forward, Output], Tensor],
    added: Callable[[Variables], Weights] = lambda variables: {},
) -> Recipe:
    """Return FedAvg with a private model, of the same architecture, on the same batches.

    Args:
        context: The context in which the method is built.
        loss: Function from the shared model's pass and the private model's output to the sum of
            both losses.
        added: Function from the first variables to further personal parameters, by names that no
            weight of the network has.
    """
    network = context.network
    names = network.names["params"]

    def term(forward: Forward, state: Tree) -> tuple[Tensor, Tree]:
        batch = forward.batch
        params = {name: forward.personal_params[name] for name in names}
        private = network.train(params, state["buffers"], batch["x"], key=batch.get("key"))
        return loss(forward, private), {"buffers": private.buffers}

    mutual = AdaptiveTerm(
        "private_model",
        lambda variables: {"buffers": variables["buffers"]},
        term,
        lambda state, statistics: statistics,
    )
    base = recipe(
        context,
        terms=(mutual,),
        personal_params=lambda variables: {**variables["params"], **added(variables)},
    )

    def personal(server: RecipeServer, client: RecipeClient) -> Variables:
        params: Weights = client["personal_params"]
        return {
            "params": {name: params[name] for name in names},
            "buffers": client["terms"]["private_model"]["buffers"],
        }

    return replace(base, views={"global": shared_model, "personal": personal})


def divergence(teacher: Tensor, student: Tensor, batch: Batch) -> Tensor:
    """KL(softmax(teacher) || softmax(student)), the weighted mean over the batch; teacher fixed."""
    log_p, log_q = F.log_softmax(teacher.detach(), -1), F.log_softmax(student, -1)
    return weighted_mean((log_p.exp() * (log_p - log_q)).sum(-1), batch)
