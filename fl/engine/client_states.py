"""The trees of all clients in host memory, of which those who never took part cost nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl.api import trees
from fl.api.trees import Tree
from fl.base.errors import FedloomError

Row = tuple[Tensor, ...]
"""The leaves of one client's tree, in the order of `fl.api.trees.leaves`, in memory of their
own."""


@dataclass(frozen=True, eq=False)
class ClientStates(Mapping[str, Any]):
    """A stack of all clients, of which only those who took part have rows; all others are alike.

    To be read as the stacked tree that it stands for; each key read makes that part of the stack.
    Nothing of it changes: `put` gives another one, with the rows of all others in common.

    Attributes:
        count: How many clients there are.
        initial: The tree of one that took no part, without ``facts``.
        facts: What clients differ in from the start and never change, by key a tensor [clients,
            ...].
        rows: By client, its own leaves in place of those of ``initial``.
    """

    count: int
    initial: Tree
    facts: Mapping[str, Tensor]
    rows: Mapping[int, Row]

    @classmethod
    def alike(cls, initial: Tree, facts: Mapping[str, Tensor], count: int) -> ClientStates:
        """Clients before round 1."""
        return cls(count, trees.apply(_own, initial), facts, {})

    @classmethod
    def of(cls, stack: Tree) -> ClientStates:
        """The clients of a stack, each with a row."""
        leaves = trees.leaves(stack)
        count = len(leaves[0]) if leaves else 0
        initial = trees.apply(lambda leaf: leaf.new_zeros(leaf.shape[1:]), stack)
        return cls(count, initial, {}, dict(enumerate(_rows(leaves, count))))

    def __getitem__(self, key: str) -> Any:
        if key in self.facts:
            return self.facts[key]
        # Of this key alone: a whole stack of very many clients fits into no memory.
        return trees.stack([{key: self._tree(client)[key]} for client in range(self.count)])[key]

    def __iter__(self) -> Iterator[str]:
        yield from self.initial
        yield from self.facts

    def __len__(self) -> int:
        return len(self.initial) + len(self.facts)

    @property
    def nbytes(self) -> int:
        """Of one client's tree."""
        facts = sum(fact[:1].numel() * fact.element_size() for fact in self.facts.values())
        return trees.nbytes(self.initial) + facts

    def client(self, client: int) -> dict[str, Any]:
        """One client's tree. It shares memory with this: nothing may be written into it."""
        return {**self._tree(client), **{key: fact[client] for key, fact in self.facts.items()}}

    def _tree(self, client: int) -> Tree:
        if client not in self.rows:
            return self.initial
        return trees.unflatten(self.initial, self.rows[client])

    def take(self, clients: Tensor | Sequence[int]) -> dict[str, Any]:
        """A stack of some clients, in their order."""
        index = torch.as_tensor(clients, dtype=torch.int64)
        facts = {key: fact[index] for key, fact in self.facts.items()}
        return {**self._stacked(index.tolist()), **facts}

    def _stacked(self, clients: Sequence[int]) -> Tree:
        """The trees of some clients without ``facts``, stacked."""
        leaves = trees.leaves(self.initial)
        rows = [self.rows.get(client, leaves) for client in clients]
        if not rows:
            return trees.apply(lambda leaf: leaf[None][:0], self.initial)
        columns = zip(*rows, strict=True)
        return trees.unflatten(self.initial, [torch.stack(column) for column in columns])

    def put(self, clients: Tensor, values: Tree) -> ClientStates:
        """The clients, of which some are replaced.

        Args:
            clients: Which, int64 [m].
            values: A stack of them, in host memory; what a client's tree does not have is left out.

        Raises:
            FedloomError: If one of the ``facts`` is another.
        """
        for key, fact in self.facts.items():
            if key in values and not torch.equal(fact[clients], values[key]):
                raise FedloomError(f"the {key} of a client is not what it was. Allowed: no change")
        leaves = trees.apply(lambda like, leaf: leaf.to(like.dtype), self.initial, values)
        rows = zip(clients.tolist(), _rows(trees.leaves(leaves), len(clients)), strict=True)
        return ClientStates(self.count, self.initial, self.facts, {**self.rows, **dict(rows)})

    def without(self, names: Collection[str]) -> ClientStates:
        """The clients without everything that has one of these names, at any depth."""
        places = range(len(trees.leaves(self.initial)))
        numbered = trees.unflatten(self.initial, [torch.tensor(place) for place in places])
        kept = [int(place) for place in trees.leaves(trees.drop(numbered, names))]
        rows = {client: tuple(row[i] for i in kept) for client, row in self.rows.items()}
        return ClientStates(self.count, trees.drop(self.initial, names), self.facts, rows)

    def saved(self) -> dict[str, Any]:
        """What is not known before round 1, as a tree, for a checkpoint."""
        ids = torch.tensor(sorted(self.rows), dtype=torch.int64)
        return {
            "initial": dict(self.initial),
            "ids": ids,
            "rows": self._stacked(ids.tolist()),
        }

    def resumed(self, saved: Tree) -> ClientStates:
        """These clients, before round 1, as they were when `saved` was asked."""
        ids = saved["ids"].tolist()
        rows = zip(ids, _rows(trees.leaves(saved["rows"]), len(ids)), strict=True)
        return ClientStates(self.count, saved["initial"], self.facts, dict(rows))


def _rows(leaves: Sequence[Tensor], count: int) -> list[Row]:
    """The rows of stacked leaves, each in memory of its own: another's does not keep it."""
    if not leaves:
        return [()] * count
    return list(zip(*([_own(row) for row in leaf.unbind(0)] for leaf in leaves), strict=True))


def _own(leaf: Tensor) -> Tensor:
    return leaf.detach().clone(memory_format=torch.contiguous_format)
