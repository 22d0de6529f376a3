"""Several models that a client tries on its own samples, and the choice of those that it gets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import Batch, Network, Variables, keyed, trees

EXPLORE, TIES, ORDER = range(3)
"""Streams of random numbers."""


def losses_by_model(network: Network, models: Sequence[Variables], batch: Batch) -> Tensor:
    """Return the cross-entropy of each sample by each model in evaluation mode, [b, models]."""
    outputs = [network.eval(m["params"], m["buffers"], batch["x"]).outputs for m in models]
    values = [F.cross_entropy(z, batch["y"], reduction="none") for z in outputs]
    return torch.stack(values, dim=-1)


def epsilon_greedy(
    scores: Tensor, is_available: Tensor, count: int, epsilon: Tensor, key: Tensor
) -> tuple[Tensor, Tensor]:
    """Choose those with the largest scores, each with a probability replaced by a random one.

    Args:
        scores: Score of each, [n]; ties are broken at random.
        is_available: Which of them can be chosen, [n].
        count: Number of those that are chosen, at most n.
        epsilon: Probability of a random one, a scalar.
        key: Key of the random numbers, an int64 scalar.

    Returns:
        The numbers of those that are chosen, [count], and whether each was available, [count].
    """
    size = len(scores)
    by_chance = keyed.uniform(key, TIES, (size,)).argsort()
    ascending = by_chance[scores[by_chance].argsort(stable=True)]
    rank, chance = ascending.argsort().to(scores.dtype), keyed.uniform(key, ORDER, (size,))
    explores = keyed.uniform(key, EXPLORE, (count,)) < epsilon
    chosen: list[Tensor] = []
    availability: list[Tensor] = []
    numbers = torch.arange(size, device=scores.device)
    for number in range(count):
        values = torch.where(explores[number], chance.to(rank.dtype), rank)
        best = torch.where(is_available, values, -1).argmax()
        chosen.append(best)
        availability.append((is_available & (numbers == best)).any())
        is_available = is_available & (numbers != best)
    if not count:
        return numbers[:0], is_available[:0]
    return torch.stack(chosen), torch.stack(availability)


def gains_by_distance(losses: Tensor, reference: Variables, models: Sequence[Variables]) -> Tensor:
    """Return (L_0 - L_j) / ||w_j - w_0|| of each model, [models]; 0 for one equal to the reference.

    Args:
        losses: Loss of the reference, then of each model, [1 + models].
        reference: The reference w_0; only its parameters count.
        models: The models w_j.
    """
    squares = [trees.squared_distance(m["params"], reference["params"]) for m in models]
    distances = torch.stack(squares).sqrt()
    is_other = distances > 0
    return torch.where(is_other, (losses[0] - losses[1:]) / torch.where(is_other, distances, 1), 0)


def gain_step(reference: Variables, models: Sequence[Variables], gains: Tensor) -> Variables:
    """Return w_0 + sum_j a_j (w_j - w_0), with a_j the positive gains divided by their sum.

    Without a positive gain it is w_0. Counters (integer leaves) are those of the first model.

    Args:
        reference: The reference w_0.
        models: The models w_j.
        gains: The gain of each model, [models].
    """
    positive = gains.clamp(min=0)
    weights = positive / torch.where(positive.sum() > 0, positive.sum(), 1)

    def moved(start: Tensor, *ends: Tensor) -> Tensor:
        if not start.is_floating_point():
            return ends[0]
        a = weights.to(start.dtype)
        return start + sum(a[number] * (end - start) for number, end in enumerate(ends))

    return trees.apply(moved, reference, *models)
