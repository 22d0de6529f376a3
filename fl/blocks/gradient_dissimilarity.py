"""Dissimilarity of clients at a model: how much their gradients differ.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys
2020. arXiv:1812.06127 (definition 3, figures 2, 6 and 8).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypedDict

import torch
from torch import Tensor
from torch.func import grad

from fl.api import (
    Batch,
    BuildContext,
    FedloomError,
    Method,
    Phase,
    Sweep,
    Tree,
    Variables,
    WeightedAverage,
    Weights,
    shared_model,
    trees,
)
from fl.blocks.exchange import send_all_but

TreePair = tuple[Tree, Tree]

DISSIMILARITY_MEASURES = ("variance", "dissimilarity")
"""Names in `MeasuredServer` and in traces."""


class MeasuredServer(TypedDict):
    """Further state of the server, for the model at the begin of a measured round.

    The mean E is over all clients that may take part, weighted as in the mean of models. Both are 0
    before the first measurement, float64 [].

    Attributes:
        variance: E||grad F_k - grad f||^2.
        dissimilarity: B = sqrt(E||grad F_k||^2 / ||grad f||^2), which is 1 if all gradients are
            equal.
    """

    variance: Tensor
    dissimilarity: Tensor


class MeanGradient(TypedDict):
    """Upload of a client.

    Attributes:
        gradient: Its mean gradient, float64, by name.
        square: The squared norm of that, [].
    """

    gradient: Weights
    square: Tensor


def with_dissimilarity(method: Method, context: BuildContext) -> Method:
    """Add a phase before each evaluated round that measures dissimilarity and changes nothing.

    In it every client, drawn for the round or not, computes the mean gradient of its training
    samples in evaluation mode. Its bytes and operations are counted as those of any phase.

    Raises:
        FedloomError: If clients differ in modality, and so do not have all weights.
    """
    if context.missing_weights:
        raise FedloomError(
            "dissimilarity: clients differ in modality, so they have different weights",
            advice="choose a partition with one modality",
        )

    def init(variables: Variables) -> TreePair:
        server, client = method.init(variables)
        zero = trees.leaves(variables["params"])[0].new_zeros((), dtype=torch.float64)
        return {**server, **dict.fromkeys(DISSIMILARITY_MEASURES, zero)}, client

    def measure(
        server: MeasuredServer, clients: Tree, uploads: MeanGradient, n: Tensor
    ) -> TreePair:
        return {**server, **dissimilarity_measures(trees.mean(uploads, n))}, clients

    inner_send, inner_trace = method.send, method.trace
    send_without_measures = send_all_but(*DISSIMILARITY_MEASURES)
    phase = Phase(
        (gradient_sweep(context),),
        WeightedAverage(measure),
        is_active=is_evaluated(context),
        send=lambda server: shared_model(server, None),
        all_clients=True,
    )
    return replace(
        method,
        init=init,
        earlier_phases=(
            *method.earlier_phases,
            phase,
        ),  # Last, because positions of phases key the random numbers of others.
        send=lambda server: send_without_measures(inner_send(server) if inner_send else server),
        trace=lambda server: {
            **(inner_trace(server) if inner_trace else {}),
            **{name: server[name] for name in DISSIMILARITY_MEASURES},
        },
    )


def is_evaluated(context: BuildContext) -> Callable[[int], bool]:
    """Return a function that says whether a round is evaluated."""
    interval, last_round = context.training.evaluate_every, context.training.rounds
    return lambda round_: round_ % interval == 0 or round_ == last_round


def gradient_sweep(context: BuildContext) -> Sweep:
    """Return a sweep that uploads `MeanGradient`."""
    network, task = context.network, context.task

    def look(server: Variables, client: Tree, upload: Tree, batch: Batch) -> Tree:
        def loss(params: Weights) -> Tensor:
            output = network.eval(params, server["buffers"], batch["x"], nested=True)
            return task.loss(output.outputs, batch)

        count = batch["weight"].sum().double()
        slopes = grad(loss)(dict(server["params"]))
        return {"sum": trees.apply(lambda g: g.double() * count, slopes), "count": count}

    def end(
        server: Variables, client: Tree, upload: Tree, totals: Tree
    ) -> tuple[Tree, MeanGradient]:
        gradient = trees.apply(lambda g: g / totals["count"].clamp(min=1), totals["sum"])
        return client, {"gradient": gradient, "square": trees.squared_norm(gradient)}

    return Sweep(look, end)


def dissimilarity_measures(mean: MeanGradient) -> MeasuredServer:
    """Compute the measures from the mean over clients."""
    common = trees.squared_norm(mean["gradient"])
    return {
        "variance": (mean["square"] - common).clamp(min=0),
        "dissimilarity": (mean["square"] / common.clamp(min=1e-300)).sqrt(),
    }
