"""Maximum mean discrepancies between two samples of features, under many kernels at once.

S. Ayromlou, D. B. Emerson. Adaptive Latent-Space Constraints in Personalized FL. 2025 (sections 3.2
and 3.3), after A. Gretton et al. Optimal kernel choice for large-scale two-sample tests. NIPS 2012.

Samples x and y have the same number of rows, ``[..., n, d]``, and any leading dimensions: clients,
seeds. For a kernel k and a pair of rows (s, t), h(s, t) = k(x_s, x_t) + k(y_s, y_t) - k(x_s, y_t) -
k(y_s, x_t).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fl.blocks.deep_kernel import DeepKernel
from fl.blocks.distances import squared_distances
from fl.blocks.kernel_weights import optimal_kernel_weights, optimal_kernel_weights_cvxpy

__all__ = [
    "GRID",
    "Convention",
    "DeepKernel",
    "kernel_covariance",
    "kernel_mmd2",
    "kernel_statistics",
    "mk_mmd2",
    "optimal_kernel_weights",
    "optimal_kernel_weights_cvxpy",
]

Convention = Literal["multiply", "divide"]
"""Meaning of gamma: exp(-gamma |a - b|^2) in the paper, exp(-|a - b|^2 / gamma) in its code."""

GRID: tuple[float, ...] = tuple(2 ** (-3.5 + j / 4) for j in range(19))
"""The paper's gammas: 2^-3.5 to 2^1, exponents a quarter apart (appendix C, which counts 18)."""

Gammas = Sequence[float] | Tensor

BLOCK_ROWS, EXPONENTIALS_AT_ONCE = 64, 2**18
"""Rows of a block of pairs, and exponentials computed at once, so that a cache holds them."""

OCTAVE_UNITS = 10**14
"""A rate counts as double another one if it is an octave higher, to one part in this many."""


def kernel_mmd2(
    x: Tensor,
    y: Tensor,
    gammas: Gammas,
    *,
    convention: Convention = "multiply",
    biased: bool = True,
) -> Tensor:
    """MMD^2 between x and y under each kernel, ``[..., r]``.

    m_j is the mean of h_j(s, t) over pairs of rows.

    Args:
        x: The first sample, ``[..., n, d]``.
        y: The second sample, with as many rows.
        gammas: The parameters of the r kernels.
        convention: The meaning of gamma.
        biased: Whether the mean is over all n^2 pairs, or over the n (n - 1) pairs of different
            rows, which may be negative (Gretton et al., JMLR 2012, equation 4; 0 for one row).
    """
    ladder, n = _ladder(_rates(gammas, convention)), x.shape[-2]
    total = x.new_zeros(())
    for selves, distances in _pairs(x, y, ladder):
        terms = _terms(distances, ladder)
        total = total + 2 * terms.sum(dim=-1)
        if selves:
            total = total - (1 if biased else 2) * terms[..., :selves].sum(dim=-1)
    return ladder.in_given_order(total / (n * n if biased else max(n * (n - 1), 1)))


def kernel_covariance(
    x: Tensor, y: Tensor, gammas: Gammas, *, convention: Convention = "multiply"
) -> Tensor:
    """Covariance Q, ``[..., r, r]``, of the kernels' h over pairs of rows.

    Q_ij = sum over all n^2 pairs of (h_i - m_i) (h_j - m_j) / (n^2 - 1); 0 for one row.
    """
    return kernel_statistics(x, y, gammas, convention=convention)[1]


def kernel_statistics(
    x: Tensor,
    y: Tensor,
    gammas: Gammas,
    *,
    convention: Convention = "multiply",
    biased: bool = True,
) -> tuple[Tensor, Tensor]:
    """Compute `kernel_mmd2` and `kernel_covariance` from one evaluation of the kernels.

    A few thousand pairs are computed at a time, so that they fit in the cache. Sums are taken
    around the mean of the first ones, which is near enough to m for squares to lose no digits.
    """
    ladder, n = _ladder(_rates(gammas, convention)), x.shape[-2]
    centre = first = second = diagonal = x.new_zeros(())
    for i, (selves, distances) in enumerate(_pairs(x, y, ladder)):
        terms = _terms(distances, ladder)
        centre = centre if i else terms.mean(dim=-1, keepdim=True)
        terms = terms - centre
        first = first + 2 * terms.sum(dim=-1, keepdim=True)
        second = second + 2 * (terms @ terms.mT)
        if selves:
            self_pairs = terms[..., :selves]
            diagonal = diagonal + self_pairs.sum(dim=-1, keepdim=True)
            second = second - self_pairs @ self_pairs.mT
    first = first - diagonal
    mean = centre + first / (n * n)
    if not biased:
        mean = (n * (n - 1) * centre + first - diagonal) / max(n * (n - 1), 1)
    covariance = (second - first @ first.mT / (n * n)) / max(n * n - 1, 1)
    return ladder.in_given_order(mean.squeeze(-1)), ladder.in_given_order(
        ladder.in_given_order(covariance).mT
    )


def mk_mmd2(
    x: Tensor,
    y: Tensor,
    gammas: Gammas,
    weights: Tensor,
    *,
    convention: Convention = "multiply",
    biased: bool = True,
) -> Tensor:
    """MK-MMD^2 = sum_j beta_j MMD^2(x, y; k_j), ``[...]`` (section 3.3); weights ``[..., r]``."""
    return (weights * kernel_mmd2(x, y, gammas, convention=convention, biased=biased)).sum(dim=-1)


def _rates(gammas: Gammas, convention: Convention) -> tuple[float, ...]:
    """Return the factor of the squared distance in each kernel."""
    values = gammas.tolist() if isinstance(gammas, Tensor) else gammas
    return tuple(float(g) if convention == "multiply" else 1 / float(g) for g in values)


@dataclass(frozen=True)
class Ladder:
    """Rates in rungs: each rate is twice the rate at its position on the previous rung.

    Only the first rung needs exponentials: exp(-2 u) is exp(-u) squared. The grid has rungs of 4,
    4, 4, 4 and 3; rates that are not doubles of each other make one rung.

    Attributes:
        rates: The rates of the first rung.
        sizes: The sizes of the rungs.
        positions: The position of each rate, in the given order, among those of all rungs.
        scales: The scale of each rate, 2^rung, see `_terms`.
    """

    rates: tuple[float, ...]
    sizes: tuple[int, ...]
    positions: tuple[int, ...]
    scales: tuple[float, ...]

    def in_given_order(self, values: Tensor) -> Tensor:
        """Return sums of `_terms`, ``[..., r]``, in the order in which the rates were given."""
        # Rates that rise or fall need no indices, which would be copied to a GPU.
        ascending = tuple(range(len(self.positions)))
        if self.positions == ascending[::-1]:
            values = values.flip(-1)
        elif self.positions != ascending:
            values = values[..., list(self.positions)]
        return values * _row(self.scales, values)


def _row(numbers: Sequence[float], example: Tensor) -> Tensor:
    """Make a tensor [r] of the type and on the device of another.

    It is filled on that device, because a copy to a GPU would wait for it.
    """
    if example.device.type == "cpu" or torch.compiler.is_compiling():
        return torch.tensor(numbers, dtype=example.dtype, device=example.device)
    return torch.cat([example.new_full((1,), number) for number in numbers])


def _ladder(rates: tuple[float, ...]) -> Ladder:
    chains: list[list[int]] = []
    open_ends: dict[int, list[int]] = {}
    for j in sorted(range(len(rates)), key=rates.__getitem__):
        octave = round(OCTAVE_UNITS * math.log2(rates[j]))
        chain = open_ends.pop(octave - OCTAVE_UNITS, None)
        # A compiler repeats a rung for every use of it, so exponentials are cheaper there.
        if chain is None or torch.compiler.is_compiling():
            chain = []
            chains.append(chain)
        chain.append(j)
        open_ends[octave] = chain
    chains.sort(key=len, reverse=True)
    rungs = [[c[level] for c in chains if level < len(c)] for level in range(len(chains[0]))]
    order = [j for rung in rungs for j in rung]
    level = {j: level for level, rung in enumerate(rungs) for j in rung}
    return Ladder(
        tuple(rates[j] for j in rungs[0]),
        tuple(map(len, rungs)),
        tuple(order.index(j) for j in range(len(rates))),
        tuple(2.0 ** level[j] for j in range(len(rates))),
    )


def _pairs(x: Tensor, y: Tensor, ladder: Ladder) -> Iterator[tuple[int, Tensor]]:
    """Iterate over pairs s <= t in blocks; as h is symmetric, these are enough.

    Yields:
        The number of pairs at the front of a row with itself (every other pair counts twice), and
        the distances of the pairs, ``[..., 4, pairs]``.
    """
    n = x.shape[-2]
    for start in range(0, n, BLOCK_ROWS):
        side = min(BLOCK_ROWS, n - start)
        distances = squared_distances(x, y, start, start + side)
        s, t = torch.triu_indices(side, side, 1, device=x.device)
        columns_of_pairs = torch.cat(
            [torch.arange(side, device=x.device) * (side + 1), s * side + t]
        )
        yield side, distances[..., :side].flatten(-2).index_select(-1, columns_of_pairs)
        if start + side < n:
            remaining = distances[..., side:].flatten(-2)
            size = max(1, EXPONENTIALS_AT_ONCE // (len(ladder.rates) * remaining[..., 0].numel()))
            yield from ((0, columns) for columns in remaining.split(size, dim=-1))


def _terms(distances: Tensor, ladder: Ladder) -> Tensor:
    """Return h of every kernel for every pair of rows, each divided by 2^rung, ``[..., r, pairs]``.

    A kernel k of rate u d is held as e = k - 1 = expm1(-u d): it keeps its digits where rows are
    near and k is almost 1, and the ones cancel in h. The kernel of twice the rate is k^2, so that
    its e is (1 + e)^2 - 1 = e^2 + 2 e. With f_i = e / 2^i on rung i this is a single operation,

        f_(i+1) = f_i + 2^(i-1) f_i^2,

    and dividing by a power of two costs no digits. `Ladder.in_given_order` multiplies by 2^i again.

    Args:
        distances: Distances d of `squared_distances` for each pair, ``[..., 4, pairs]``.
        ladder: The rates u in rungs.
    """
    rates = _row(ladder.rates, distances)
    scaled = torch.expm1(distances.unsqueeze(-3) * -rates.reshape(-1, 1, 1))
    terms = []
    for rung, size in enumerate(ladder.sizes):
        if rung:
            scaled = scaled[..., :size, :, :]
            scaled = torch.addcmul(scaled, scaled, scaled, value=2.0 ** (rung - 2))
        halves = scaled[..., :2, :] - scaled[..., 2:, :]
        terms.append(halves[..., 0, :] + halves[..., 1, :])
    return torch.cat(terms, dim=-2)
