"""Oort: clients with large losses that are quick are selected more often, and unknown ones tried.

Lai, Zhu, Madhyastha, Chowdhury. Oort: Efficient Federated Learning via Guided Participant
Selection. OSDI 2021. arXiv:2010.06081.

Algorithm 1. Util(i) = U(i) + sqrt(0.1 log R / L(i)), with R the round and L(i) the client's last
one, times (T / t_i)^alpha if the client takes t_i above the preferred duration T (equation 1). Of
the clients with at least `cut_off` times the utility of the last that would be selected, those of
the round are drawn in proportion to their utilities; an `exploration` share of the round are
clients that never took part, drawn in proportion to their speed. Where the paper says nothing, this
is what the authors' released code does: U is capped at the quantile `clip` and scaled to 0 to 1
among the clients that are known, and T is a quantile of clients' times. The pacer relaxes T, every
`window` rounds, by `pacer` if the sum of U fell from the window before.

Differences: the paper's U(i) is |B_i| sqrt(mean of squared losses). Here it is the number of
samples times the mean training loss of the client's last round, which the client sends beside its
upload: it is smaller where losses of samples differ. Times are those of the coming round, which are
known, where the paper has those of the past; without devices no client is slow and exploration is
uniform. Blacklisted clients take part if there would be too few without them. The released code
explores by numbers of samples, and relaxes T if the mean of U of clients that took part before
changes by less than a tenth (it lowers T if it becomes six times as large or more); its cut is at
the first client that is not among the (1 - epsilon) K best. For equal U, times and last rounds our
utilities are equal to its own; in 60 rounds of 60 clients with given losses and times, without
pacer, both select every client equally often on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from fl.api import (
    ALL_TASKS,
    BuildContext,
    Count,
    NonNegative,
    Offer,
    Outcome,
    Selection,
    Share,
    Tree,
)
from fl.api.participation import LOSS_BYTES
from fl.blocks.client_selection import draw, unknown_losses, with_losses


@dataclass(frozen=True)
class Oort:
    """Guided selection of participants.

    Attributes:
        exploration: epsilon, share of a round's clients that never took part, before round 1.
        exploration_decay: factor of this share in each round.
        exploration_min: smallest share.
        penalty: alpha, how much less slow clients count.
        duration: quantile of clients' times that is the preferred duration at first; 1: none.
        pacer: Delta, by how much the pacer relaxes this quantile.
        window: W, rounds after which it may.
        cut_off: c, share of the last selected client's utility from which clients are drawn.
        clip: quantile of utilities above which they are equal.
        blacklist: rounds after which a client takes part in no more; by default it always may.
    """

    exploration: Share = 0.9
    exploration_decay: Share = 0.98
    exploration_min: Share = 0.2
    penalty: NonNegative = 2.0
    duration: Share = 0.3
    pacer: Share = 0.05
    window: Count = 20
    cut_off: Share = 0.95
    clip: Share = 0.95
    blacklist: Count | None = None

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> Selection:
        """Return the selection."""
        return Selection(self.select, self.init, learn, LOSS_BYTES)

    def init(self, clients: int) -> Tree:
        """Return the memory before round 1.

        It has losses, the last round and the number of rounds of all clients, the sum of U of the
        last 2 W rounds, and the quantile of the preferred duration.
        """
        return {
            **unknown_losses(clients),
            "last": torch.zeros(clients, dtype=torch.int64),
            "rounds": torch.zeros(clients, dtype=torch.int64),
            "sums": torch.zeros(2 * self.window, dtype=torch.float64),
            "duration": torch.tensor(self.duration, dtype=torch.float64),
        }

    def select(self, memory: Any, offer: Offer) -> tuple[np.ndarray, Tree]:
        """Return the clients of a round."""
        last, losses = memory["last"].numpy(), memory["losses"].numpy()
        u = offer.sizes * np.where(np.isfinite(losses), losses, 0.0)
        memory = {**memory, **self.paced(memory, u[last == offer.round - 1].sum(), offer.round)}
        seconds = np.ones(len(u)) if offer.seconds is None else offer.seconds
        clients = self.admitted(memory["rounds"].numpy(), offer)
        known, unknown = clients[last[clients] > 0], clients[last[clients] == 0]
        share = self.exploration * self.exploration_decay**offer.round
        share = max(share, self.exploration_min)
        exploited = min(int((1 - share) * offer.count), len(known))
        explored = min(offer.count - exploited, len(unknown))
        exploited = offer.count - explored
        preferred = preferred_duration(seconds[offer.clients], float(memory["duration"]))
        utilities = self.utilities(u[known], last[known], seconds[known], preferred, offer.round)
        pool = is_above_cut(utilities, exploited, self.cut_off)
        first = draw(offer.generator, known[pool], utilities[pool], exploited)
        others = draw(offer.generator, unknown, 1 / seconds[unknown], explored)
        return np.concatenate([first, others]), memory

    def admitted(self, rounds: np.ndarray, offer: Offer) -> np.ndarray:
        """Return the clients that are there without blacklisted ones, or all if too few remain."""
        if self.blacklist is None:
            return offer.clients
        admitted = offer.clients[rounds[offer.clients] < self.blacklist]
        return admitted if len(admitted) >= offer.count else offer.clients

    def utilities(
        self, u: np.ndarray, last: np.ndarray, seconds: np.ndarray, preferred: float, round_: int
    ) -> np.ndarray:
        """Return Util(i) of clients that took part before, [K].

        Args:
            u: Their statistical utilities, [K].
            last: Their last rounds, [K].
            seconds: The time that each would take, [K].
            preferred: Preferred duration T.
            round_: Number of the round.
        """
        if not len(u):
            return u
        low, high = 0.999 * u.min(), u.max()
        cap = np.sort(u)[min(int(len(u) * self.clip), len(u) - 1)]
        statistical = (np.minimum(u, cap) - low) / max(high - low, 1e-4)
        utilities: np.ndarray = statistical + np.sqrt(0.1 * np.log(round_) / last)
        is_slow = seconds > preferred
        utilities[is_slow] *= (preferred / seconds[is_slow]) ** self.penalty
        return utilities

    def paced(self, memory: Any, newest: float, round_: int) -> Tree:
        """Return the sums of U with the newest, and the quantile of the preferred duration."""
        sums = torch.cat([memory["sums"][1:], torch.tensor([newest], dtype=torch.float64)])
        duration, past = memory["duration"], round_ - 1
        before, now = sums.view(2, -1).sum(1)
        if past >= 2 * self.window and past % self.window == 0 and before > now:
            duration = (duration + self.pacer).clamp(max=1)
        return {"sums": sums, "duration": duration}


def learn(memory: Any, outcome: Outcome) -> Tree:
    """Return the memory with what a round told of its clients."""
    memory = with_losses(memory, outcome)
    clients = torch.from_numpy(outcome.clients)
    last, rounds = memory["last"].clone(), memory["rounds"].clone()
    last[clients] = outcome.round
    rounds[clients] += 1
    return {**memory, "last": last, "rounds": rounds}


def preferred_duration(seconds: np.ndarray, quantile: float) -> float:
    """Return a quantile of times, [n]; inf for 1."""
    if quantile >= 1:
        return np.inf
    return float(np.sort(seconds)[int(len(seconds) * quantile)])


def is_above_cut(utilities: np.ndarray, count: int, share: float) -> np.ndarray:
    """Return which utilities are at least a share of the ``count``-th largest one, bool [K]."""
    if not count:
        return np.zeros(len(utilities), bool)
    last = float(np.sort(utilities)[-count])
    is_above: np.ndarray = utilities >= min(share * last, last)
    return is_above
