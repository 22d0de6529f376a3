"""Heads that are given at the start and stay fixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    SHARED_PARAMS,
    BuildContext,
    FedloomError,
    Inputs,
    Method,
    Network,
    Predictor,
    Tree,
    rng,
)
from fl.blocks.exchange import send_all_but
from fl.blocks.linear_layers import head_parameters

FIXED_HEAD = "fixed_head"
"""Key of the head's parameters in the server's tree, by name."""


def with_fixed_head(
    method: Method,
    network: Network,
    head: Callable[[Tree], Mapping[str, Tensor]],
    predict: Callable[[Tree, Tree, Inputs], Tensor],
) -> Method:
    """Return a method that shares the body, with a head that all know and nobody trains or sends.

    Args:
        method: A method whose clients keep the head, and do not train it.
        network: The network.
        head: Function from the first variables to the head's parameters by name.
        predict: Prediction with the shared model, see `fl.api.protocols.Predict`.
    """

    def init(variables: Tree) -> tuple[Tree, Tree]:
        server, client = method.init(variables)
        parameters = head(variables)
        return {**server, FIXED_HEAD: parameters}, {**client, "params": parameters}

    def model(server: Tree, client: Tree | None) -> Tree:
        params = {**server["params"], **server[FIXED_HEAD]}
        ordered = {name: params[name] for name in network.names["params"]}
        added = {key: dict(server[key]) for key in (SHARED_PARAMS,) if key in server}
        return {"params": ordered, "buffers": dict(server["buffers"]), **added}

    views = {"global": Predictor(model, predict, serves_absent_clients=True, is_per_sample=True)}
    return replace(method, init=init, send=send_all_but(FIXED_HEAD), views=views)


def cosine_outputs(features: Tensor, weight: Tensor) -> Tensor:
    """Return <z / ||z||, w_c> of features [b, ...] and a head's weight [C, d], [b, C]."""
    return F.linear(F.normalize(features.flatten(1), dim=-1), weight)


def predict_by_cosines(network: Network) -> Callable[[Tree, Tree, Inputs], Tensor]:
    """Return a prediction by `cosine_outputs`."""

    def predict(variables: Tree, memory: Tree, x: Inputs) -> Tensor:
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


def simplex_etf(context: BuildContext, variables: Tree) -> dict[str, Tensor]:
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


def orthonormal_head(context: BuildContext, variables: Tree) -> dict[str, Tensor]:
    """Return the head's parameters by name: a weight [C, d] of orthonormal rows, without bias.

    Raises:
        FedloomError: If there are more classes than features.
    """
    classes, width = head_parameters(context.network, variables["params"])["weight"].shape
    weight = orthonormal_columns(context, width, classes).T
    return head_by_name(context.network, variables, weight)


def head_by_name(network: Network, variables: Tree, weight: Tensor) -> dict[str, Tensor]:
    """Return the parameters of a head by name, with this weight [C, d] and without bias."""
    example = head_parameters(network, variables["params"])
    parameters = {"weight": weight.contiguous().to(example["weight"])}
    if "bias" in example:
        parameters["bias"] = torch.zeros_like(example["bias"])
    names = [name for name in network.names["params"] if name in network.head]
    return {name: parameters[name.rpartition(".")[2]] for name in names}
