"""Operators of PyTorch that differ between processors in spite of `fl.base.arithmetic`, replaced.

MKL computes square roots and inverse sines, cosines and tangents with other last bits on AMD than
on Intel; NumPy rounds a root correctly, and takes the others from the C library. PyTorch's LSTM by
oneDNN differs, too; without oneDNN it does not.
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
from fl.pytorch.torch_internals import without_onednn

FUNCTIONS = {"sqrt": np.sqrt, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan}
"""NumPy's functions in place of PyTorch's operators on the CPU, by their names."""

CAPABILITY = "AVX2"
"""Instructions that PyTorch uses in a portable process."""


def is_portable() -> bool:
    """Whether this process computes portably on the CPU; it then has the replaced operators."""
    if arithmetic.current() != arithmetic.PORTABLE:
        return False
    if torch.backends.cpu.get_cpu_capability() != CAPABILITY:
        return False
    replace_operators()
    return True


@cache
def replace_operators() -> torch.library.Library:
    """Replace the operators in this process; the replacement lasts as long as the process."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        for name, function in FUNCTIONS.items():
            _replace(library, name, function)
    rnn: Any = torch.nn.modules.rnn
    rnn._VF.lstm = _without_onednn(rnn._VF.lstm)
    return library


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
