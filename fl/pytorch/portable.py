"""Operators of PyTorch, replaced in processes with portable arithmetic (`fl.base.arithmetic`).

MKL computes square roots and inverse sines, cosines and tangents with other last bits on AMD than
on Intel; NumPy rounds a root correctly, and takes the others from the C library. PyTorch's LSTM by
oneDNN differs, too; without oneDNN it does not. Products of matrices are NumPy's
(`fl.pytorch.products`), because MKL takes twice as long for portable ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl.base import arithmetic
from fl.pytorch import products
from fl.pytorch.torch_internals import without_onednn

FUNCTIONS = {"sqrt": np.sqrt, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan}
"""NumPy's functions in place of PyTorch's operators on the CPU, by their names."""

CAPABILITY = "AVX2"
"""Instructions that PyTorch uses in a portable process."""


def is_portable() -> bool:
    """Whether this process computes portably on the CPU; it then has the replaced operators."""
    if arithmetic.current() != arithmetic.PORTABLE:
        return False
    if torch.backends.cpu.get_cpu_capability() != CAPABILITY or not has_openblas():
        return False
    replace_operators()
    return True


@cache
def has_openblas() -> bool:
    """Whether NumPy multiplies matrices by OpenBLAS, as that of PyPI does."""
    built_with: Any = np.show_config(mode="dicts")
    return "openblas" in built_with["Build Dependencies"]["blas"]["name"].lower()


@cache
def replace_operators() -> torch.library.Library:
    """Replace the operators in this process; the replacement lasts as long as the process."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        for name, function in FUNCTIONS.items():
            _replace(library, name, function)
        for name, product in PRODUCTS.items():
            library.impl(name, product, "CPU")
    rnn: Any = torch.nn.modules.rnn
    rnn._VF.lstm = _without_onednn(rnn._VF.lstm)
    return library


def _product(first: Tensor, second: Tensor) -> Tensor:
    """Multiply matrices, or stacks of them, by NumPy."""
    _check_types(first, second)
    if first.dtype in products.TYPES:
        return products.multiply(first, second)
    as_single = first.dtype in (torch.float16, torch.bfloat16)
    arrays = [(t.float() if as_single else t).detach().resolve_conj() for t in (first, second)]
    return products.multiply(*(array.resolve_neg() for array in arrays)).to(first.dtype)


def _check_types(first: Tensor, second: Tensor) -> None:
    """Refuse two types, as PyTorch's own operators do; NumPy would choose one of them."""
    if first.dtype != second.dtype:
        names = f"{first.dtype} and {second.dtype}"
        raise RuntimeError(f"matrices of different types, dtype {names}, have no product or sum")


def _product_and_sum(
    shift: Tensor, first: Tensor, second: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """Return beta shift + alpha first second; a shift is not read if beta is 0."""
    product = _product(first, second)
    _check_types(shift, product)
    if alpha != 1:
        product.mul_(alpha)
    return product.add_(shift, alpha=beta) if beta else product


PRODUCTS = {
    **dict.fromkeys(("mm", "bmm"), _product),
    **dict.fromkeys(("addmm", "baddbmm"), _product_and_sum),
}
"""Functions in place of PyTorch's operators for products on the CPU, by their names."""


def _replace(library: torch.library.Library, name: str, function: np.ufunc) -> None:
    """Replace an operator on the CPU, in its three forms."""

    def compute(x: Tensor) -> Tensor:
        if x.is_complex() or x.dtype in (torch.float32, torch.float64):
            return torch.from_numpy(
                np.asarray(function(x.detach().resolve_conj().resolve_neg().numpy()))
            )
        if not x.dtype.is_floating_point:
            return compute(x.to(torch.get_default_dtype()))
        return compute(x.float()).to(x.dtype)

    def compute_in_place(x: Tensor) -> Tensor:
        return x.copy_(compute(x))

    def compute_into(x: Tensor, *, out: Tensor) -> Tensor:
        result = compute(x)
        return out.resize_(result.shape).copy_(result)

    forms = {name: compute, f"{name}_": compute_in_place, f"{name}.out": compute_into}
    for form, form_function in forms.items():
        library.impl(form, form_function, "CPU")


def _without_onednn(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes as ``function`` without oneDNN."""

    @wraps(function)
    def compute(*args: Any) -> Any:
        with without_onednn():
            return function(*args)

    return compute
