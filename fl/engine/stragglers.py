"""Stragglers: some clients of a round do only part of their work (system heterogeneity).

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys
2020. arXiv:1812.06127 (section 5.2). As in that paper, a straggler does a number of local epochs
that is uniform in 1, ..., E; if a study sets steps, a number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from fl.api.training import Training
from fl.base import rng

FULL_WORK = Fraction(1)


def draw_stragglers(clients: Sequence[int], training: Training, seed: int, round_: int) -> set[int]:
    """Draw the clients of a round that do only part of their work.

    Each client has a random number by (seed, client, round); those with the smallest numbers are
    stragglers.

    Args:
        clients: The clients of the round.
        training: Settings of training, with the share of stragglers. If their work is dropped, at
            least one client is no straggler.
        seed: Seed of the run.
        round_: Number of the round.

    Returns:
        The stragglers.
    """
    count = round(training.stragglers * len(clients))
    if training.partial_work == "dropped":
        count = min(count, len(clients) - 1)
    if not count:
        return set()
    numbers = {k: rng.generator(seed, "straggler", k, round_).random() for k in clients}
    return set(sorted(clients, key=numbers.__getitem__)[:count])


def draw_work_shares(
    clients: Sequence[int], stragglers: set[int], training: Training, seed: int, round_: int
) -> list[Fraction]:
    """Draw the share of its work that each client of a round does, above 0 and up to 1.

    Args:
        clients: The clients of the round.
        stragglers: Those that do only part of their work.
        training: Settings of training.
        seed: Seed of the run.
        round_: Number of the round.

    Returns:
        The share of each client.
    """
    full_length = training.local_steps or training.local_epochs or 1

    def share(client: int) -> Fraction:
        generator = rng.generator(seed, "work of a straggler", client, round_)
        return Fraction(int(generator.integers(1, full_length + 1)), full_length)

    return [share(client) if client in stragglers else FULL_WORK for client in clients]


def shorten_training(training: Training, share: Fraction) -> Training:
    """Reduce the length of a pass to a share of it, rounded up to whole epochs or steps."""
    if share == FULL_WORK:
        return training
    if training.local_steps is not None:
        return replace(training, local_steps=math.ceil(training.local_steps * share))
    return replace(training, local_epochs=math.ceil((training.local_epochs or 1) * share))
