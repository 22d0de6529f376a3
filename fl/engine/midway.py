"""What of a round is kept before it is over, so that a long one can be left and gone on with.

A round is phases of groups of clients of passes of steps. Each of these levels holds what it has
done so far as a tree, and the tree of the level within it. Nothing here decides a number: a round
that goes on from such a tree has the bits of one that was never left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fl.api import trees
from fl.api.trees import Tree
from fl.pytorch.memory import once

INNER = "within"
"""Where a level's tree has that of the level within it."""

STEP = "step"
"""Where the tree of the last level has how many steps of it are done."""


@dataclass(frozen=True)
class Midway:
    """One level of the work of a round.

    due: whether all levels are to be kept now; asked after every step. keep: is given this level's
    tree; it may raise, to leave the round. begun: the tree that was kept of this level, from which
    it goes on; {} where it begins.
    """

    due: Callable[[], bool] = lambda: False
    keep: Callable[[dict[str, Any]], None] = lambda tree: None
    begun: Tree = field(default_factory=dict)

    def first(self, name: str) -> int:
        """Which of the parts of this level comes first, by the name under which it counts them."""
        return int(self.begun.get(name, 0))

    def within(self, name: str, number: int, held: Callable[[], Tree] = dict) -> Midway:
        """The level within one of the parts of this one; ``held``: what is done before that."""

        def keep(inner: dict[str, Any]) -> None:
            self.keep({name: torch.tensor(number), **held(), INNER: inner})

        goes_on = number == self.first(name)
        return Midway(self.due, keep, self.begun.get(INNER, {}) if goes_on else {})

    def afresh(self) -> Midway:
        """The level of which nothing is done yet."""
        return replace(self, begun={})


UNWATCHED = Midway()
"""Nothing is asked for and nothing kept."""


def place(kept: Tree) -> str:
    """Where a round was left, in words: ``group 3, step 17``. Firsts are not named."""
    found = []
    while kept:
        for name, leaf in kept.items():
            if isinstance(leaf, Tensor) and not leaf.dim() and not leaf.is_floating_point():
                found.append(_named(name, int(leaf), not kept.get(INNER, True)))
        kept = kept.get(INNER, {})
    return ", ".join(filter(None, found))


def _named(name: str, number: int, over: bool) -> str:
    """A part in words, counted from 1; over: the one before it was the last that was done."""
    if over:
        return f"after {name} {number}"
    return f"{name} {number if name == STEP else number + 1}" if name == STEP or number else ""


def listed(items: Iterable[Tree]) -> dict[str, Any]:
    """A list of trees as one tree."""
    return {str(number): dict(tree) for number, tree in enumerate(items)}


def unlisted(tree: Tree, device: torch.device) -> list[dict[str, Any]]:
    """The list that `listed` was given, on a device."""
    return [moved(one, device) for one in tree.values()]


def numbered(tensors: Iterable[Tensor]) -> dict[str, Any]:
    """A list of tensors as a tree, whose leaves they are."""
    return {str(number): tensor for number, tensor in enumerate(tensors)}


def moved(tree: Tree, device: torch.device) -> dict[str, Any]:
    """`fl.api.trees.to` that keeps strides, those of 0 too: sums are in the same order as
    before."""

    def there(leaf: Tensor) -> Tensor:
        return once(leaf).to(device).expand(leaf.shape)

    return trees.apply(there, tree)
