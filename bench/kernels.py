"""What fits kernels, beside code as one writes it: ``python -m bench.kernels``.

An update of MK-MMD's weights is m-hat and Q of every kernel of the full grid and the quadratic
program, for 8 clients. A step of MMD-D's kernel is the gradient of equation 3 by its parameters.
The plain side goes client after client and kernel after kernel, with cvxpy and automatic
differentiation. Both run on one thread, in turn, ``--tries`` times; the shortest time of the
processor of each counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import cvxpy
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.timing import begin, shortest
from fl.api import trees
from fl.blocks.deep_kernel import DeepKernel
from fl.blocks.distances import three_distances
from fl.blocks.mmd import GRID, kernel_statistics, optimal_kernel_weights

CLIENTS, RIDGE = 8, 1e-3
SIZES = {"32 x 128 features": (32, 128), "500 samples of 20 features": (500, 20)}


def features(rows: int, width: int) -> tuple[Tensor, Tensor]:
    """Normalised features of every client, and those of a model that has drifted a little."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((CLIENTS, rows, width), dtype=np.float32)
    drift = draw.standard_normal(x.shape, dtype=np.float32)
    pair = x, x + 0.3 * drift + 0.3 * drift.mean(axis=1, keepdims=True)
    x, y = (F.normalize(torch.from_numpy(t), dim=-1) for t in pair)
    return x, y


def batched(x: Tensor, y: Tensor) -> Tensor:
    """Weights of all clients at once, [K, r]."""
    return optimal_kernel_weights(*kernel_statistics(x, y, GRID), RIDGE)


def plain(x: Tensor, y: Tensor) -> Tensor:
    """The same, written plainly."""
    return torch.stack([plain_client(a, b) for a, b in zip(x, y, strict=True)])


def plain_client(x: Tensor, y: Tensor) -> Tensor:
    """Weights of one client, [r]."""
    xx, yy, xy = (torch.cdist(a, b).square() for a, b in ((x, x), (y, y), (x, y)))
    h = []
    for gamma in GRID:
        k_xx, k_yy, k_xy = (torch.exp(-gamma * squares) for squares in (xx, yy, xy))
        h.append((k_xx + k_yy - k_xy - k_xy.T).flatten())
    terms = torch.stack(h)
    m, q = terms.mean(dim=1).double().numpy(), torch.cov(terms).double().numpy()
    b = cvxpy.Variable(len(GRID))
    form = cvxpy.quad_form(b, 2 * q + RIDGE * np.eye(len(GRID)), assume_PSD=True)
    cvxpy.Problem(cvxpy.Minimize(form / 2), [m @ b == 1, b >= 0]).solve()
    weights = np.maximum(np.asarray(b.value), 0)
    return torch.from_numpy(weights / weights.sum())


def slopes(x: Tensor, y: Tensor) -> Tensor:
    """The gradient of equation 3 by the parameters of all clients' deep kernels, [K, p]."""
    _, found = DeepKernel(_kernels(x)).ascent(x, y, plain=three_distances(x, y))
    return torch.cat([leaf.flatten(1) for leaf in _stacked(found)], dim=1)


def plain_slopes(x: Tensor, y: Tensor) -> Tensor:
    """The same, written plainly, with automatic differentiation."""
    kernels = _kernels(x)
    return torch.stack([_plain_slope(trees.take(kernels, i), x[i], y[i]) for i in range(CLIENTS)])


def _kernels(x: Tensor) -> trees.Tree:
    # Wide enough for many pairs to be near, as they are after some training.
    start = DeepKernel.start(x.shape[-1], seed=0)
    kernel = {**start, "phi": start["phi"] * 3}
    return trees.stack([trees.apply(lambda leaf: leaf.to(x.dtype), kernel)] * CLIENTS)


def _stacked(found: trees.Tree) -> list[Tensor]:
    return [leaf[:, None] if leaf.dim() == 1 else leaf for leaf in trees.leaves(found)]


def _plain_slope(kernel: trees.Tree, x: Tensor, y: Tensor) -> Tensor:
    leaves = [leaf.detach().requires_grad_() for leaf in trees.leaves(kernel)]
    params = trees.unflatten(kernel, leaves)

    def phi(z: Tensor) -> Tensor:
        *layers, last = params["featurizer"].values()
        for layer in layers:
            z = F.softplus(F.linear(z, layer["weight"], layer["bias"]))
        return F.linear(z, last["weight"], last["bias"])

    epsilon = params["epsilon"].sigmoid()

    def k(a: Tensor, b: Tensor) -> Tensor:
        deep = torch.exp(-_squares(phi(a), phi(b)) / params["phi"].square())
        return ((1 - epsilon) * deep + epsilon) * torch.exp(-_squares(a, b) / params["q"].square())

    h, n = k(x, x) + k(y, y) - k(x, y) - k(x, y).T, len(x)
    mmd2 = (h.sum() - h.diagonal().sum()) / (n * (n - 1))
    variance = 4 * (h.mean(1).square().mean() - h.mean().square()) + 1e-8
    found = torch.autograd.grad(mmd2 / variance.sqrt(), leaves, allow_unused=True)
    return torch.cat(
        [
            torch.zeros_like(w).flatten() if g is None else g.flatten()
            for g, w in zip(found, leaves, strict=True)
        ]
    )


def _squares(a: Tensor, b: Tensor) -> Tensor:
    return a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T


Side = Callable[[Tensor, Tensor], Tensor]


def errors(sides: tuple[Side, Side], x: Tensor, y: Tensor) -> list[float]:
    """How far each side is from what the second one gives in double precision, relatively."""
    exact = sides[1](x.double(), y.double())
    return [float((side(x, y) - exact).norm() / exact.norm()) for side in sides]


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=5)
    asked = parser.parse_args()
    begin("milliseconds of the processor")
    print("| | plainly | at once | ratio | errors of both |\n|---|---:|---:|---:|---:|")
    kinds: dict[str, tuple[Side, Side]] = {
        "MK-MMD's weights, a client": (plain, batched),
        "MMD-D's kernel, a client": (plain_slopes, slopes),
    }
    for kind, sides in kinds.items():
        for title, (rows, width) in SIZES.items():
            x, y = features(rows, width)
            slow, fast = shortest([partial(side, x, y) for side in sides], asked.tries)
            wrong = ", ".join(f"{error:.0e}" for error in errors(sides, x, y))
            times = f"{1e3 * slow / CLIENTS:.2f} | {1e3 * fast / CLIENTS:.3f}"
            print(f"| {kind}, {title} | {times} | {slow / fast:.1f}x | {wrong} |", flush=True)


if __name__ == "__main__":
    main()
