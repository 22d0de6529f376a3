"""How often tests over clients err, by simulation: ``python -m tools.false_claims``.

The figures of docs/guide/analyse.md are printed: the share of families without any effect in which
a test claims one, and how often an effect is found.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from fl.report import claims, client_tests

COMPARISONS, FLIPS = 40, 999
FAMILIES = 200
"""Number of simulated families of each setting."""

LUCK = (0.0, 0.25, 0.5, 1.0)
"""Standard deviations of what a draw gives all clients alike, in points."""

BLOCKS = np.repeat(np.arange(26), np.random.default_rng(0).integers(2, 41, 26))
"""Block of each of 574 clients, in 26 blocks of 2 to 40, such as the roles of plays."""


def simulated(
    seed: int,
    clients: int,
    *,
    comparisons: int = COMPARISONS,
    luck: float = 0.3,
    missing: float = 0.0,
    blocks: np.ndarray | None = None,
    skew: float = 0.0,
) -> np.ndarray:
    """Return differences without an effect, in points, [comparisons, clients, draws].

    Clients differ by 6 points, with heavy tails and a part that comparisons share, as they have one
    baseline; so do eight draws, by ``luck``; and the noise of a client in a draw is of 6 points.

    Args:
        seed: Seed of the family.
        clients: Number of clients.
        comparisons: Number of comparisons.
        luck: Standard deviation of what a draw gives all clients alike.
        missing: Share of clients who are not scored in a draw.
        blocks: Block of each client, [clients]; those of a block share 3 points. None: no blocks.
        skew: Skewness of what clients differ by; if it is not 0, a gamma variable less its mean.
    """
    generator = np.random.default_rng(seed)
    shared = generator.normal(0, 3.3, (1, clients, 1))
    own = generator.standard_t(3, (comparisons, clients, 1)) * 2.9
    if skew:
        shape = 4 / skew**2
        own = generator.gamma(shape, 5 / shape**0.5, (comparisons, clients, 1)) - 5 * shape**0.5
    draws = generator.normal(0, luck / 2**0.5, (1, 1, 8))
    draws = draws + generator.normal(0, luck / 2**0.5, (comparisons, 1, 8))
    values = shared + own + draws + generator.normal(0, 6, (comparisons, clients, 8))
    if blocks is not None:
        values += generator.normal(0, 3, (comparisons, blocks.max() + 1, 1))[:, blocks]
    values[:, generator.random((clients, 8)) < missing] = np.nan
    return values


def false_claims(
    clients: int, luck: float, blocks: np.ndarray | None = None
) -> tuple[float, float, float]:
    """Return the shares of families with a false claim.

    Args:
        clients: Number of clients.
        luck: As in `simulated`.
        blocks: As in `simulated`; the tests do not know them.

    Returns:
        Of the test over clients and draws, of clients alone, and of draws alone.
    """
    smallest = []
    for seed in range(FAMILIES):
        values = simulated(seed, clients, luck=luck, blocks=blocks)
        test = client_tests.family_test(values, flips=FLIPS)
        of_draws = client_tests.draws_p_values(values)
        smallest.append([test.p.min(), test.p_models.min(), of_draws.min()])
    both, alone, draws = np.mean(np.array(smallest) <= claims.LEVEL, axis=0)
    return float(both), float(alone), float(draws)


def skewed(clients: int, skew: float) -> tuple[float, float, float]:
    """Return what a test claims where clients differ with a skew, and no method has an effect.

    Returns:
        Mean skewness of clients' mean differences; the share of families of eleven comparisons
        with a false claim; and the share of these claims that say "behind".
    """
    found, false, behind = [], 0, []
    for seed in range(FAMILIES):
        values = simulated(seed, clients, comparisons=11, skew=skew)
        means = values.mean(axis=2)
        centred = means - means.mean(axis=1, keepdims=True)
        found.append(np.mean((centred**3).mean(axis=1) / (centred**2).mean(axis=1) ** 1.5))
        test = client_tests.family_test(values, flips=FLIPS)
        is_claimed = test.p <= claims.LEVEL
        false += bool(is_claimed.any())
        behind += [*(test.difference[is_claimed] < 0)]
    return float(np.mean(found)), false / FAMILIES, float(np.mean(behind)) if behind else 0.0


def main(arguments: Sequence[str] = ()) -> int:
    """Print all figures."""
    argparse.ArgumentParser("python -m tools.false_claims", description=__doc__).parse_args(
        arguments
    )
    print("False claims, of clients and draws, of clients alone, of draws alone")
    for clients in (50, 200, 600):
        for luck in LUCK:
            shares = "  ".join(f"{share:6.1%}" for share in false_claims(clients, luck))
            print(f"{clients:4} clients, {luck:4} points a draw: {shares}", flush=True)
    print(f"{len(BLOCKS)} clients in {BLOCKS.max() + 1} blocks")
    by_client, *_ = false_claims(len(BLOCKS), 0.3, BLOCKS)
    by_block = [
        client_tests.family_test(
            simulated(seed, len(BLOCKS), blocks=BLOCKS), blocks=BLOCKS, flips=FLIPS
        ).p.min()
        for seed in range(FAMILIES)
    ]
    share = np.mean(np.array(by_block) <= claims.LEVEL)
    print(f"  clients flip: {by_client:.1%}; blocks flip: {share:.1%}", flush=True)
    print("Where clients differ with a skew: false claims, and how many of them say behind")
    for clients in (20, 67, 400):
        for skew in (2.0, 8.0):
            observed, false, behind = skewed(clients, skew)
            print(
                f"{clients:4} clients, skew {observed:.1f}: {false:.1%}, {behind:.0%}", flush=True
            )
    print("An effect of 3 points in one of the comparisons is found")
    for clients in (20, 50, 200):
        found = []
        for seed in range(FAMILIES):
            values = simulated(seed, clients)
            values[0] += 3
            found.append(client_tests.family_test(values, flips=FLIPS).p[0] <= claims.LEVEL)
        print(f"  {clients:4} clients: {np.mean(found):.1%}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
