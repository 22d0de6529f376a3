"""The trees of all clients in host memory; clients that never took part take no memory."""

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
    """A stack of all clients, which stores rows only for the clients that took part.

    It can be read as the stacked tree that it represents; each key that is read computes that part
    of the stack. Nothing in it changes: `replace_clients` returns a new object, which shares the
    rows of all other clients.

    Attributes:
        count: Number of clients.
        initial: The tree of a client that never took part, without ``facts``.
        facts: Tensors in which clients differ from the start and which never change, by key, with
            shape [clients, ...].
        rows: By client, its own leaves instead of those of ``initial``.
    """

    count: int
    initial: Tree
    facts: Mapping[str, Tensor]
    rows: Mapping[int, Row]

    @classmethod
    def from_initial(cls, initial: Tree, facts: Mapping[str, Tensor], count: int) -> ClientStates:
        """Return the clients before round 1."""
        return cls(count, trees.apply(_copy, initial), facts, {})

    @classmethod
    def from_stack(cls, stack: Tree) -> ClientStates:
        """Return the clients of a stack, each with a row."""
        leaves = trees.leaves(stack)
        count = len(leaves[0]) if leaves else 0
        initial = trees.apply(lambda leaf: leaf.new_zeros(leaf.shape[1:]), stack)
        return cls(count, initial, {}, dict(enumerate(_rows(leaves, count))))

    def __getitem__(self, key: str) -> Any:
        if key in self.facts:
            return self.facts[key]
        # Only this key is stacked: a whole stack of very many clients does not fit into memory.
        return trees.stack([{key: self._tree(client)[key]} for client in range(self.count)])[key]

    def __iter__(self) -> Iterator[str]:
        yield from self.initial
        yield from self.facts

    def __len__(self) -> int:
        return len(self.initial) + len(self.facts)

    @property
    def nbytes(self) -> int:
        """Bytes of one client's tree."""
        facts = sum(fact[:1].numel() * fact.element_size() for fact in self.facts.values())
        return trees.nbytes(self.initial) + facts

    def client(self, client: int) -> Tree:
        """Return one client's tree; it shares memory with this object and must not be changed."""
        return {**self._tree(client), **{key: fact[client] for key, fact in self.facts.items()}}

    def _tree(self, client: int) -> Tree:
        if client not in self.rows:
            return self.initial
        return trees.unflatten(self.initial, self.rows[client])

    def take(self, clients: Tensor | Sequence[int]) -> Tree:
        """Stack the trees of some clients, in the given order."""
        index = torch.as_tensor(clients, dtype=torch.int64)
        facts = {key: fact[index] for key, fact in self.facts.items()}
        return {**self._stack_rows(index.tolist()), **facts}

    def _stack_rows(self, clients: Sequence[int]) -> Tree:
        """Stack the trees of some clients, without ``facts``."""
        leaves = trees.leaves(self.initial)
        rows = [self.rows.get(client, leaves) for client in clients]
        if not rows:
            return trees.apply(lambda leaf: leaf[None][:0], self.initial)
        columns = zip(*rows, strict=True)
        return trees.unflatten(self.initial, [torch.stack(column) for column in columns])

    def replace_clients(self, clients: Tensor, stack: Tree) -> ClientStates:
        """Return the clients with new trees for some of them.

        Args:
            clients: The ids of these clients, int64 [m].
            stack: Their new trees, stacked, in host memory; keys that the tree of a client does not
                have are left out.

        Returns:
            All clients.

        Raises:
            FedloomError: If one of the ``facts`` has changed.
        """
        for key, fact in self.facts.items():
            if key in stack and not torch.equal(fact[clients], stack[key]):
                raise FedloomError(
                    f"a method changed {key} of a client, which must stay as it is",
                    advice=f"return {key} unchanged from the method's functions",
                )
        leaves = trees.apply(lambda initial, leaf: leaf.to(initial.dtype), self.initial, stack)
        rows = zip(clients.tolist(), _rows(trees.leaves(leaves), len(clients)), strict=True)
        return ClientStates(self.count, self.initial, self.facts, {**self.rows, **dict(rows)})

    def drop(self, names: Collection[str]) -> ClientStates:
        """Return the clients without all keys of the given names, at any depth."""
        indices = range(len(trees.leaves(self.initial)))
        numbered = trees.unflatten(self.initial, [torch.tensor(index) for index in indices])
        remaining = [int(index) for index in trees.leaves(trees.drop(numbered, names))]
        rows = {client: tuple(row[i] for i in remaining) for client, row in self.rows.items()}
        return ClientStates(self.count, trees.drop(self.initial, names), self.facts, rows)

    def to_checkpoint(self) -> Tree:
        """Return a tree of everything that is not known before round 1."""
        ids = torch.tensor(sorted(self.rows), dtype=torch.int64)
        return {
            "initial": dict(self.initial),
            "ids": ids,
            "rows": self._stack_rows(ids.tolist()),
        }

    def from_checkpoint(self, checkpoint: Tree) -> ClientStates:
        """Return these clients, which are those before round 1, as a checkpoint has them."""
        ids = checkpoint["ids"].tolist()
        rows = zip(ids, _rows(trees.leaves(checkpoint["rows"]), len(ids)), strict=True)
        return ClientStates(self.count, checkpoint["initial"], self.facts, dict(rows))


def _rows(leaves: Sequence[Tensor], count: int) -> list[Row]:
    """Copy the rows of stacked leaves, so that no row keeps the memory of another one."""
    if not leaves:
        return [()] * count
    return list(zip(*([_copy(row) for row in leaf.unbind(0)] for leaf in leaves), strict=True))


def _copy(leaf: Tensor) -> Tensor:
    return leaf.detach().clone(memory_format=torch.contiguous_format)
