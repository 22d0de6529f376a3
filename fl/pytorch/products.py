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
        products = _multiply_stacks(_array(x), _array(weight).swapaxes(-1, -2))
        return products if bias is None else products.add_(bias.unsqueeze(-2))
    if bias is None:
        return torch.bmm(x, weight.mT)
    return torch.baddbmm(bias.unsqueeze(-2), x, weight.mT)


def input_gradients(slopes: Tensor, weight: Tensor) -> Tensor:
    """Return the gradients by the inputs of `outputs` from those by the outputs."""
    if is_by_numpy(slopes, weight):
        return _multiply_stacks(_array(slopes), _array(weight))
    return torch.bmm(slopes, weight)


def weight_gradients(slopes: Tensor, x: Tensor) -> Tensor:
    """Return the gradients by the weights of `outputs` from those by the outputs."""
    if is_by_numpy(slopes, x):
        return _multiply(_array(slopes).swapaxes(-1, -2), _array(x))
    return torch.bmm(slopes.mT, x)


def _multiply_stacks(first: np.ndarray, second: np.ndarray) -> Tensor:
    """Return the products, stored transposed if they have more columns than rows.

    OpenBLAS is fastest with the larger number of rows first.
    """
    if second.shape[-1] <= first.shape[-2]:
        return _multiply(first, second)
    product = _product(second.swapaxes(-1, -2), first.swapaxes(-1, -2))
    # No view of PyTorch's, so that layers may change it in place.
    return torch.from_numpy(product.swapaxes(-1, -2))


def is_by_numpy(tensor: Tensor, *others: Tensor | None) -> bool:
    """Whether NumPy multiplies: on one thread of a CPU, and where no other program looks on.

    These are autograd, autocast, which chooses types, and a counter of operations. Tensors of
    different types are PyTorch's as well, which refuses them.
    """
    dtype = tensor.dtype
    if dtype not in TYPES or tensor.device.type != "cpu":
        return False
    for other in others:  # In every step of a training: a generator would take twice as long.
        if other is not None and other.dtype != dtype:
            return False
    return (
        torch.get_num_threads() == 1
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch_internals.count_dispatch_modes()
    )


def multiply(first: Tensor, second: Tensor) -> Tensor:
    """Return the product of matrices, or of two stacks of them, by NumPy."""
    return _multiply(_array(first), _array(second))


def _multiply(first: np.ndarray, second: np.ndarray) -> Tensor:
    return torch.from_numpy(_product(first, second))


def _product(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the products of matrices, without NumPy's warnings of numbers too large."""
    with np.errstate(over="ignore", invalid="ignore"):
        product: np.ndarray = np.matmul(first, second)
    return product


def _array(tensor: Tensor) -> np.ndarray:
    """Return the array of NumPy that shares a tensor's memory."""
    array: np.ndarray = (tensor.detach() if tensor.requires_grad else tensor).numpy()
    return array
