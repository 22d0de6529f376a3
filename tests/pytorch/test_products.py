"""Products of stacked matrices are those of their definition, whoever multiplies."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fl.base import arithmetic
from fl.pytorch import products

SHAPES = [(3, 4, 5, 2), (3, 2, 5, 7), (1, 1, 4, 1), (2, 6, 1, 6)]
"""Clients, rows of inputs, columns of inputs, and rows of weights."""


@pytest.fixture(params=[1, 2], ids=["NumPy", "PyTorch"])
def by_numpy(request: pytest.FixtureRequest) -> Iterator[bool]:
    threads = torch.get_num_threads()
    torch.set_num_threads(request.param)
    with torch.no_grad():
        yield request.param == 1
    torch.set_num_threads(threads)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_outputs_and_gradients_are_those_of_a_linear_layer(
    shape: tuple[int, ...], dtype: torch.dtype, by_numpy: bool
) -> None:
    clients, rows, inside, outside = shape
    draw = torch.Generator().manual_seed(0)

    def drawn(*sizes: int) -> Tensor:
        return torch.randn(clients, *sizes, generator=draw).to(dtype)

    x, weight, bias, slopes = (
        drawn(*sizes) for sizes in ((rows, inside), (outside, inside), (outside,), (rows, outside))
    )
    assert products.is_by_numpy(x) == (by_numpy and dtype != torch.bfloat16)
    limits = {"rtol": 0.02, "atol": 0.05} if dtype == torch.bfloat16 else {}
    for shift in (bias, None):
        expected = torch.einsum("cbi,coi->cbo", x, weight)
        expected = expected if shift is None else expected + shift[:, None]
        torch.testing.assert_close(products.outputs(x, weight, shift), expected, **limits)
        # Inputs of another memory layout, such as the outputs of the layer before.
        stored = x.mT.contiguous().mT
        torch.testing.assert_close(products.outputs(stored, weight, shift), expected, **limits)
    by_x = torch.einsum("cbo,coi->cbi", slopes, weight)
    by_weight = torch.einsum("cbo,cbi->coi", slopes, x)
    torch.testing.assert_close(products.input_gradients(slopes, weight), by_x, **limits)
    torch.testing.assert_close(products.weight_gradients(slopes, x), by_weight, **limits)


PROGRAM = """
from fl.base import arithmetic
arithmetic.choose()
import torch
from fl.pytorch import portable
assert portable.is_portable()
a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
exact = a.double()[:, :, None].mul(b.double()).sum(1)
for kind in (torch.float32, torch.float64, torch.bfloat16, torch.complex64):
    x, y, z = a.to(kind), b.to(kind), c.to(kind)
    limits = dict(rtol=0.02, atol=0.1) if kind == torch.bfloat16 else dict(rtol=1e-5, atol=1e-5)
    def near(found, expected):
        assert found.dtype == kind
        pair = (t.to(torch.complex64) for t in (found, expected))
        torch.testing.assert_close(*pair, **limits)
    near(x @ y, exact)
    near(torch.addmm(z, x, y, beta=3, alpha=2), 2 * exact + 3 * c)
    near(torch.baddbmm(z.expand(2, 1, 5), x.expand(2, 3, 4), y.expand(2, 4, 5))[1], exact + c)
    near(torch.bmm(x[None], y[None])[0], exact)
lost = torch.full((5,), float("nan"))
torch.testing.assert_close(torch.addmm(lost, a, b, beta=0), a @ b)
assert torch.mm(torch.empty(3, 0), torch.empty(0, 5)).equal(torch.zeros(3, 5))
for shift, first, second in ((c, a, b.double()), (c.double(), a, b)):
    try:
        torch.addmm(shift, first, second)
    except RuntimeError as error:
        assert "dtype" in str(error)
    else:
        raise AssertionError("types were mixed")
w = b.clone().requires_grad_()
(slope,) = torch.autograd.grad((a @ w).square().sum(), w, create_graph=True)
(second,) = torch.autograd.grad(slope.sum(), w)
torch.testing.assert_close(second, 2 * a.T @ (a @ torch.ones_like(b)))
"""


@pytest.mark.skipif(not arithmetic.can_be_portable(), reason="needs an x86-64 processor")
def test_portable_operators_are_products() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def test_numbers_that_are_too_large_are_infinite_without_a_warning() -> None:
    large = torch.full((1, 2, 2), 1e38)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        assert products.multiply(large, large).isinf().all()
        assert products.multiply(large * torch.inf, large * 0).isnan().all()
