"""TiFL: all clients of a round are of one tier, which take about equally long.

Chai, Ali, Zawad, Truex, Anwar, Baracaldo, Zhou, Ludwig, Yan, Cheng. TiFL: A Tier-based Federated
Learning System. HPDC 2020. arXiv:2001.09249.

Algorithm 2, adaptive tier selection. Clients that are there are sorted by the time of a round and
cut into tiers of equally many. A tier is drawn by probability, at most `credits` times in a run.
Every `interval` rounds, if the last tier has not become better since, probabilities change: of the
n tiers with credits the i-th from the worst has (n - i + 1) / (n (n + 1) / 2), as in the code of
fltk, in which the best one is not left out.

How good a tier is says the mean loss of the shared model on its clients' training samples, which
all clients are asked for, where the paper has the accuracy on their test samples: these decide
nothing here. That is counted. Times are known, where the paper measures them in rounds beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from fl.api import ALL_TASKS, BuildContext, Count, FedloomError, Offer, Selection, Training, Tree


@dataclass(frozen=True)
class TiFL:
    """Tier-based selection.

    Attributes:
        tiers: number of tiers.
        interval: I, rounds after which probabilities of tiers may change.
        credits: rounds in which a tier may be selected; by default any number.
    """

    tiers: Count = 5
    interval: Count = 10
    credits: Count | None = None

    tasks: ClassVar = ALL_TASKS
    needs_devices: ClassVar = True

    def check(self, participants: int, training: Training) -> None:
        """Refuse tiers that are too small, and credits that do not last for all rounds."""
        needed, rounds = training.participants(participants), training.rounds
        if self.tiers * needed > participants:
            problem = (
                f"selection.tiers: is {self.tiers}, but {needed} of {participants} clients take"
                " part in a round, which are to be of one tier"
            )
            raise FedloomError(
                problem, f"1 to {participants // needed}", "fewer tiers, or less participation"
            )
        if self.credits is not None and self.credits * self.tiers < rounds:
            problem = (
                f"selection.credits: is {self.credits} for each of {self.tiers} tiers, but there"
                f" are {rounds} rounds"
            )
            raise FedloomError(problem, f"{-(-rounds // self.tiers)} or more", "more tiers")

    def build(self, context: BuildContext) -> Selection:
        """Return the selection."""
        credits = context.training.rounds if self.credits is None else self.credits

        def init(clients: int) -> Tree:
            return {
                "credits": torch.full((self.tiers,), credits),
                "losses": torch.full((self.tiers,), torch.nan, dtype=torch.float64),
                "probabilities": torch.full((self.tiers,), 1 / self.tiers, dtype=torch.float64),
                "tier": torch.tensor(0),
            }

        return Selection(self.select, init, asks_clients=True)

    def select(self, memory: Any, offer: Offer) -> tuple[np.ndarray, Tree]:
        """Return clients of one tier."""
        assert offer.seconds is not None
        order = np.argsort(offer.seconds[offer.clients], kind="stable")
        tiers = np.array_split(offer.clients[order], self.tiers)
        credits, losses = memory["credits"].numpy().copy(), memory["losses"].numpy()
        probabilities, tier = memory["probabilities"].numpy(), int(memory["tier"])
        if (offer.round - 1) % self.interval == 0:
            new = tier_losses(offer, tiers)
            if new[tier] >= losses[tier]:  # False before the first ones are known.
                probabilities = changed_probabilities(new, credits > 0)
            losses = new
        is_there = np.array([len(clients) > 0 for clients in tiers])
        weights = probabilities * (credits > 0) * is_there
        if not weights.any():  # No tier with credits is there.
            weights = 1.0 * is_there
        tier = int(offer.generator.choice(self.tiers, p=weights / weights.sum()))
        credits[tier] -= credits[tier] > 0
        count = min(offer.count, len(tiers[tier]))
        remembered = {
            "credits": torch.from_numpy(credits),
            "losses": torch.tensor(losses),
            "probabilities": torch.tensor(probabilities),
            "tier": torch.tensor(tier),
        }
        return offer.generator.choice(tiers[tier], count, replace=False), remembered


def tier_losses(offer: Offer, tiers: list[np.ndarray]) -> np.ndarray:
    """Ask all clients for their losses; return the mean over samples of each tier, or NaN."""
    clients, count = np.concatenate(tiers), len(tiers)
    tier = np.repeat(np.arange(count), [len(of_tier) for of_tier in tiers])
    sizes = offer.sizes[clients]
    sums = np.bincount(tier, sizes * offer.losses(clients), count)
    with np.errstate(invalid="ignore"):
        return sums / np.bincount(tier, sizes, count)


def changed_probabilities(losses: np.ndarray, has_credits: np.ndarray) -> np.ndarray:
    """Return the probabilities of tiers by their losses; without credits it is 0.

    Args:
        losses: Mean loss of each tier, [tiers].
        has_credits: Whether each has credits, [tiers].
    """
    order = np.flatnonzero(has_credits)
    order = order[np.argsort(-losses[order], kind="stable")]
    n = len(order)
    probabilities = np.zeros(len(losses))
    probabilities[order] = (n - np.arange(n)) / (n * (n + 1) / 2)
    return probabilities
