"""System heterogeneity: some of a round's clients do only part of its work.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys
2020. arXiv:1812.06127 (section 5.2). As there, a straggler does a number of local epochs that is
uniform in 1, ..., E; where a study counts steps, a number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from fl.api.training import Training
from fl.base import rng

WHOLE = Fraction(1)


def stragglers(clients: Sequence[int], training: Training, seed: int, round_: int) -> set[int]:
    """Which of a round's clients do not get done: the share that the settings say, to the nearest
    number; where their work is dropped, one client stays at least.

    Drawn by (seed, client, round): those whose numbers are smallest.
    """
    count = round(training.stragglers * len(clients))
    if training.partial_work == "dropped":
        count = min(count, len(clients) - 1)
    if not count:
        return set()
    numbers = {k: rng.generator(seed, "straggler", k, round_).random() for k in clients}
    return set(sorted(clients, key=numbers.__getitem__)[:count])


def shares(
    clients: Sequence[int], late: set[int], training: Training, seed: int, round_: int
) -> list[Fraction]:
    """How much of its work each of a round's clients does, above 0 and up to 1."""
    whole = training.local_steps or training.local_epochs or 1

    def share(client: int) -> Fraction:
        draw = rng.generator(seed, "work of a straggler", client, round_)
        return Fraction(int(draw.integers(1, whole + 1)), whole)

    return [share(client) if client in late else WHOLE for client in clients]


def shortened(length: Training, share: Fraction) -> Training:
    """The settings of a pass of which only a share is done, rounded up to epochs or steps."""
    if share == WHOLE:
        return length
    if length.local_steps is not None:
        return replace(length, local_steps=math.ceil(length.local_steps * share))
    return replace(length, local_epochs=math.ceil((length.local_epochs or 1) * share))
