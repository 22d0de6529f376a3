"""Products of stacked matrices on a CPU, by NumPy's library of linear algebra.

OpenBLAS, which NumPy brings along, gives the same bits on all processors with AVX2 if it is told to
use the instructions of one of them (`fl.base.arithmetic`), at little loss of time, where MKL, which
PyTorch calls, takes about twice as long (``python -m bench.arithmetic``). On one thread of an AMD
EPYC it multiplies the small matrices of a stack of clients faster than MKL natively, too.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fl.pytorch import torch_internals

TYPES = (torch.float32, torch.float64)


def outputs(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W' + b for each client, [clients, b, out].

    Args:
        x: Inputs, [clients, b, in].
        weight: Weights W, [clients, out, in].
        bias: Shifts b, [clients, out], or None.
    """
    if is_by_numpy(x, weight, bias):
        products = _transposed(x, weight.mT)
        return products if bias is None else products.add_(bias.unsqueeze(-2))
    if bias is None:
        return torch.bmm(x, weight.mT)
    return torch.baddbmm(bias.unsqueeze(-2), x, weight.mT)


def input_gradients(slopes: Tensor, weight: Tensor) -> Tensor:
    """Return the gradients by the inputs of `outputs` from those by the outputs."""
    if is_by_numpy(slopes, weight):
        return _transposed(slopes, weight)
    return torch.bmm(slopes, weight)


def weight_gradients(slopes: Tensor, x: Tensor) -> Tensor:
    """Return the gradients by the weights of `outputs` from those by the outputs."""
    return multiply(slopes.mT, x) if is_by_numpy(slopes, x) else torch.bmm(slopes.mT, x)


def _transposed(x: Tensor, weight: Tensor) -> Tensor:
    """Return x W, stored transposed if W has more columns than x has rows.

    OpenBLAS is fastest with the larger number of rows first.
    """
    rows, columns = x.shape[-2], weight.shape[-1]
    if columns <= rows:
        return multiply(x, weight)
    # No view, so that layers may change it in place.
    strides = (columns * rows, 1, rows)
    product = torch.empty_strided((len(x), rows, columns), strides, dtype=x.dtype)
    _multiply_into(product.mT, weight.mT, x.mT)
    return product


def is_by_numpy(tensor: Tensor, *others: Tensor | None) -> bool:
    """Whether NumPy multiplies: on one thread of a CPU, and where no other program looks on.

    These are autograd, autocast, which chooses types, and a counter of operations. Tensors of
    different types are PyTorch's as well, which refuses them.
    """
    return (
        tensor.device.type == "cpu"
        and tensor.dtype in TYPES
        and all(other is None or other.dtype == tensor.dtype for other in others)
        and torch.get_num_threads() == 1
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch_internals.count_dispatch_modes()
    )


def multiply(first: Tensor, second: Tensor) -> Tensor:
    """Return the product of matrices, or of two stacks of them, by NumPy."""
    product = torch.empty((*first.shape[:-1], second.shape[-1]), dtype=first.dtype)
    _multiply_into(product, first, second)
    return product


def _multiply_into(product: Tensor, first: Tensor, second: Tensor) -> None:
    """Write the products of matrices into memory, without NumPy's warnings of numbers too large."""
    with np.errstate(over="ignore", invalid="ignore"):
        np.matmul(_array(first), _array(second), out=product.numpy())


def _array(tensor: Tensor) -> np.ndarray:
    """Return the array of NumPy that shares a tensor's memory."""
    array: np.ndarray = (tensor.detach() if tensor.requires_grad else tensor).numpy()
    return array
