"""Heads that are given at the start and stay fixed."""

from __future__ import annotations

import torch
from torch import Tensor

from fl.api import BuildContext, FedloomError, Tree, rng
from fl.blocks.linear_layers import head_parameters


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
    network = context.network
    example = head_parameters(network, variables["params"])
    classes, width = example["weight"].shape
    p = orthonormal_columns(context, width, classes)
    centred = torch.eye(classes, dtype=p.dtype) - 1 / classes
    frame = (classes / max(classes - 1, 1)) ** 0.5 * (p @ centred)
    parameters = {"weight": frame.T.contiguous().to(example["weight"])}
    if "bias" in example:
        parameters["bias"] = torch.zeros_like(example["bias"])
    names = [name for name in network.names["params"] if name in network.head]
    return {name: parameters[name.rpartition(".")[2]] for name in names}
