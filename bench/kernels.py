"""Kernel weights of MK-MMD, beside a loop over clients, in one run: ``python -m bench.kernels``.

An update of the weights is m-hat and Q of every kernel of the full grid and the quadratic program,
for 8 clients. The straightforward side is what one would write by hand: client after client, kernel
after kernel, then cvxpy. Both sides run on one thread, in turn, ``--repeats`` times; the shortest
time of each counts. Ratios, not times, are what compares between machines.
"""

from __future__ import annotations

import argparse
import time

import cvxpy
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench import machine
from fl.parts.mmd import GRID, kernel_statistics, optimal_kernel_weights

CLIENTS, RIDGE = 8, 1e-3

WORKLOADS = {
    "batch": ("32 x 128 features", 32, 128),
    "update": ("500 samples of 20 features", 500, 20),
}


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


def shortest(x: Tensor, y: Tensor, repeats: int) -> list[float]:
    """The shortest time of `plain` and of `batched`, in milliseconds; the first is not counted."""
    sides = (plain, batched)
    times = [float("inf")] * len(sides)
    for turn in range(repeats + 1):
        for i, side in enumerate(sides):
            begun = time.perf_counter()
            side(x, y)
            if turn:
                times[i] = min(times[i], 1e3 * (time.perf_counter() - begun))
    return times


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=10)
    asked = parser.parse_args()
    machine.begin(f"milliseconds a client of {CLIENTS}")
    print("| kernel weights | straightforward | at once | ratio | largest difference |")
    print("|---|---:|---:|---:|---:|")
    for name in asked.workloads:
        title, rows, width = WORKLOADS[name]
        x, y = features(rows, width)
        apart = (plain(x, y) - batched(x, y)).abs().max().item()
        slow, fast = shortest(x, y, asked.repeats)
        shown = f"{slow / CLIENTS:.2f} | {fast / CLIENTS:.3f} | {slow / fast:.1f}x | {apart:.0e}"
        print(f"| {title} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
