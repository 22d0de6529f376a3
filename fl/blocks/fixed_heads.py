"""Heads that are given at the start and stay fixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    BuildContext,
    FedloomError,
    Inputs,
    Method,
    Network,
    Predictor,
    RecipeServer,
    Tree,
    Variables,
    Weights,
    rng,
)
from fl.api.protocols import Predict
from fl.blocks.exchange import send_all_but
from fl.blocks.linear_layers import head_parameters

AnyMethod = TypeVar("AnyMethod", bound=Method)


class FixedHeadServer(RecipeServer):
    """State of the server.

    Attributes:
        fixed_head: Parameters of the head, by name.
    """

    fixed_head: Weights


def with_fixed_head(
    method: AnyMethod,
    network: Network,
    head: Callable[[Variables], Weights],
    predict: Predict,
) -> AnyMethod:
    """Return a method that shares the body, with a head that all know and nobody trains or sends.

    Args:
        method: A method whose clients keep the head, and do not train it.
        network: The network.
        head: Function from the first variables to the head's parameters by name.
        predict: Prediction with the shared model, see `fl.api.protocols.Predict`.
    """

    def init(variables: Variables) -> tuple[Tree, Tree]:
        server, client = method.init(variables)
        parameters = head(variables)
        return {**server, "fixed_head": parameters}, {**client, "params": parameters}

    def model(server: FixedHeadServer, client: object) -> Variables:
        params = {**server["params"], **server["fixed_head"]}
        ordered = {name: params[name] for name in network.names["params"]}
        scored: RecipeServer = {"params": ordered, "buffers": server["buffers"]}
        if "shared_params" in server:
            scored["shared_params"] = server["shared_params"]
        return scored

    views = {"global": Predictor(model, predict, serves_absent_clients=True, is_per_sample=True)}
    return replace(method, init=init, send=send_all_but("fixed_head"), views=views)


def cosine_outputs(features: Tensor, weight: Tensor) -> Tensor:
    """Return <z / ||z||, w_c> of features [b, ...] and a head's weight [C, d], [b, C]."""
    return F.linear(F.normalize(features.flatten(1), dim=-1), weight)


def predict_by_cosines(network: Network) -> Predict:
    """Return a prediction by `cosine_outputs`."""

    def predict(variables: Variables, memory: Tree, x: Inputs) -> Tensor:
        features = network.eval(variables["params"], variables["buffers"], x).features
        return cosine_outputs(features, head_parameters(network, variables["params"])["weight"])

    return predict


def orthonormal_columns(context: BuildContext, rows: int, columns: int) -> Tensor:
    """Draw a matrix [rows, columns] with orthonormal columns, equal for equal seeds of runs.

    Raises:
        FedloomError: If there are more columns than rows.
    """
    if columns > rows:
        raise FedloomError(
            f"the head has {columns} classes, but only {rows} features",
            advice="choose a model with a wider last layer, or set its key `projection`",
        )
    generator = torch.Generator().manual_seed(rng.torch_seed(context.seed, "fixed head"))
    normal = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(normal)
    # The signs make the distribution uniform, and the result independent of the algorithm.
    return q * torch.where(r.diagonal() < 0, -1, 1)


def simplex_etf(context: BuildContext, variables: Variables) -> Weights:
    """Return the head's parameters by name: a simplex equiangular tight frame without bias.

    The weight is the transpose of M = sqrt(C/(C-1)) P (I - 11'/C), with P [d, C] orthonormal
    (Papyan, Han, Donoho. PNAS 2020). Every two classes then have the same angle, the largest
    possible.

    Raises:
        FedloomError: If there are more classes than features.
    """
    classes, width = head_parameters(context.network, variables["params"])["weight"].shape
    p = orthonormal_columns(context, width, classes)
    centred = torch.eye(classes, dtype=p.dtype) - 1 / classes
    frame = (classes / max(classes - 1, 1)) ** 0.5 * (p @ centred)
    return head_by_name(context.network, variables, frame.T)


def orthonormal_head(context: BuildContext, variables: Variables) -> Weights:
    """Return the head's parameters by name: a weight [C, d] of orthonormal rows, without bias.

    Raises:
        FedloomError: If there are more classes than features.
    """
    classes, width = head_parameters(context.network, variables["params"])["weight"].shape
    weight = orthonormal_columns(context, width, classes).T
    return head_by_name(context.network, variables, weight)


def head_by_name(network: Network, variables: Variables, weight: Tensor) -> Weights:
    """Return the parameters of a head by name, with this weight [C, d] and without bias."""
    example = head_parameters(network, variables["params"])
    parameters = {"weight": weight.contiguous().to(example["weight"])}
    if "bias" in example:
        parameters["bias"] = torch.zeros_like(example["bias"])
    names = [name for name in network.names["params"] if name in network.head]
    return {name: parameters[name.rpartition(".")[2]] for name in names}
