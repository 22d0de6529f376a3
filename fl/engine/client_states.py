"""The trees of all clients between rounds, in host memory or, if they are many, in a file.

Clients that never took part take no room.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.trees import Tree
from fl.base.errors import FedloomError
from fl.base.row_file import Place, RowFile, read_rows, rows_at_once

MEMORY_BYTES = 2**28
"""Largest size of the rows of a run's clients that are in memory. Beyond it, all are in a file. It
decides no number of a run.
"""

Row = np.ndarray | Place
"""The bytes of one client's leaves, one after another, uint8 [row_bytes]; or their place in a
file."""

Span = tuple[int, int]
"""Begin and end of a leaf in a row."""


@dataclass(frozen=True, eq=False)
class ClientStates(Mapping[str, Any]):
    """A stack of all clients, which stores rows only for the clients that took part.

    It can be read as the stacked tree that it represents; each key that is read computes that part
    of the stack. Nothing in it changes: `replace_clients` returns a new object, which shares the
    rows of all other clients. What is read is in memory of its own.

    Attributes:
        count: Number of clients.
        initial: The tree of a client that never took part, without ``facts``.
        facts: Tensors in which clients differ from the start and which never change, by key, with
            shape [clients, ...].
        rows: By client, its own leaves instead of those of ``initial``: all in memory, or all in
            ``file``.
        spans: Where a row has each leaf of ``initial``, in the order of `fl.api.trees.leaves`.
        initial_row: The row of a client that never took part.
        file: The file of rows that are too many for memory.
    """

    count: int
    initial: Tree
    facts: Mapping[str, Tensor]
    rows: Mapping[int, Row]
    spans: Sequence[Span]
    initial_row: np.ndarray
    file: RowFile

    @classmethod
    def from_initial(cls, initial: Tree, facts: Mapping[str, Tensor], count: int) -> ClientStates:
        """Return the clients before round 1."""
        initial = trees.apply(_copy, initial)
        leaves = trees.leaves(initial)
        ends = np.cumsum([leaf.numel() * leaf.element_size() for leaf in leaves], dtype=int)
        spans = list(pairwise([0, *ends.tolist()]))
        size = spans[-1][1] if spans else 0
        [row] = _pack([leaf[None] for leaf in leaves], spans, 1, size)
        return cls(count, initial, facts, {}, spans, row, RowFile(size))

    @classmethod
    def from_stack(cls, stack: Tree) -> ClientStates:
        """Return the clients of a stack, each with a row."""
        leaves = trees.leaves(stack)
        count = len(leaves[0]) if leaves else 0
        initial = trees.apply(lambda leaf: leaf.new_zeros(leaf.shape[1:]), stack)
        return cls.from_initial(initial, {}, count).replace_clients(torch.arange(count), stack)

    def __getitem__(self, key: str) -> Any:
        if key in self.facts:
            return self.facts[key]
        # Only this key is stacked: a whole stack of very many clients does not fit into memory.
        part, spans = {key: self.initial[key]}, self._spans({key: self._leaf_numbers()[key]})
        return self._stack(range(self.count), part, spans)[key]

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

    @property
    def are_in_file(self) -> bool:
        """Whether the rows are in ``file``."""
        return isinstance(next(iter(self.rows.values()), None), Place)

    def client(self, client: int) -> Tree:
        """Return one client's tree, which must not be changed."""
        facts = {key: fact[client] for key, fact in self.facts.items()}
        has_row = client in self.rows
        return {**(trees.take(self._stack_rows([client]), 0) if has_row else self.initial), **facts}

    def take(self, clients: Tensor | Sequence[int]) -> Tree:
        """Stack the trees of some clients, in the given order."""
        index = torch.as_tensor(clients, dtype=torch.int64)
        facts = {key: fact[index] for key, fact in self.facts.items()}
        return {**self._stack_rows(index.tolist()), **facts}

    def _stack_rows(self, clients: Sequence[int]) -> Tree:
        """Stack the trees of some clients, without ``facts``."""
        return self._stack(clients, self.initial, self.spans)

    def _stack(self, clients: Sequence[int], part: Tree, spans: Sequence[Span]) -> Tree:
        """Stack a part of the trees of some clients.

        Args:
            clients: The ids of the clients.
            part: This part of ``initial``.
            spans: Where a row has its leaves.
        """
        stack = trees.apply(lambda leaf: leaf.new_empty((len(clients), *leaf.shape)), part)
        begin, end = (spans[0][0], spans[-1][1]) if spans else (0, 0)
        step = rows_at_once(end - begin)
        for first in range(0, len(clients) if end > begin else 0, step):
            chunk = slice(first, first + step)
            content = torch.from_numpy(self._read(clients[chunk], begin, end))
            for leaf, (leaf_begin, leaf_end) in zip(trees.leaves(stack), spans, strict=True):
                if leaf_end > leaf_begin:
                    _bytes(leaf[chunk]).copy_(content[:, leaf_begin - begin : leaf_end - begin])
        return stack

    def _read(self, clients: Sequence[int], begin: int, end: int) -> np.ndarray:
        """Return bytes ``begin`` to ``end`` of the rows of some clients, uint8 [m, end - begin]."""
        rows = [self.rows.get(client, self.initial_row) for client in clients]
        content = np.empty((len(rows), end - begin), np.uint8)
        for row, target in zip(rows, content, strict=True):
            if isinstance(row, Place):
                self.file.read(row, target, begin)
            else:
                target[:] = row[begin:end]
        return content

    def replace_clients(self, clients: Tensor, stack: Tree) -> ClientStates:
        """Return the clients with new trees for some of them.

        Args:
            clients: The ids of these clients, int64 [m].
            stack: Their new trees, stacked, in host memory.

        Returns:
            All clients.

        Raises:
            FedloomError: If one of the ``facts`` has changed, for `check`, or if the disk of
                ``file`` is full or cannot be written.
        """
        self.check(stack)
        for key, fact in self.facts.items():
            if key in stack and not torch.equal(fact[clients], stack[key]):
                raise FedloomError(
                    f"a method changed {key} of a client, which must stay as it is",
                    advice=f"return {key} unchanged from the method's functions",
                )
        tree = trees.apply(lambda initial, leaf: leaf.to(initial.dtype), self.initial, stack)
        leaves, size = trees.leaves(tree), len(self.initial_row)
        step = rows_at_once(size)
        slices = [slice(begin, begin + step) for begin in range(0, len(clients), step)]
        chunks = (
            _pack([leaf[chunk] for leaf in leaves], self.spans, len(clients[chunk]), size)
            for chunk in slices
        )
        return self._with_rows(clients.tolist(), chunks)

    def _with_rows(self, clients: Sequence[int], chunks: Iterable[np.ndarray]) -> ClientStates:
        """Return the clients with new rows for some of them.

        Args:
            clients: The ids of these clients.
            chunks: Their rows in this order, some at a time, uint8 [m, row_bytes].
        """
        rows = {**self.rows}
        is_in_file, count = self.are_in_file, len(rows) + sum(key not in rows for key in clients)
        if not is_in_file and count * len(self.initial_row) > MEMORY_BYTES:
            is_in_file = True
            in_memory = (row for row in rows.values() if not isinstance(row, Place))
            rows = dict(zip(rows, self.file.write(in_memory), strict=True))
        ids = iter(clients)
        for chunk in chunks:
            # A copy of each, so that no row keeps the memory of another one.
            stored = self.file.write(chunk) if is_in_file else [row.copy() for row in chunk]
            rows.update((next(ids), row) for row in stored)
        return replace(self, rows=rows)

    def check(self, stack: Tree, shapes: bool = True) -> None:
        """Check that the trees of some clients have the tensors that they had before round 1.

        Args:
            stack: The trees, stacked.
            shapes: Whether to check shapes.

        Raises:
            FedloomError: If a tensor is missing, unknown or of another shape. An unknown one would
                be forgotten, and the client would keep its earlier value without a word.
        """
        without_facts = {key: leaf for key, leaf in stack.items() if key not in self.facts}
        initial = {"/".join(path): [*leaf.shape] for path, leaf in trees.leaf_paths(self.initial)}
        new = {"/".join(path): [*leaf.shape[1:]] for path, leaf in trees.leaf_paths(without_facts)}
        if new == initial or (not shapes and {*new} == {*initial}):
            return
        missing, unknown = sorted({*initial} - {*new}), sorted({*new} - {*initial})
        texts = [f"has {', '.join(unknown)}"] if unknown else []
        texts += [f"lacks {', '.join(missing)}"] if missing else []
        texts += [
            f"has {name} of shape {new[name]} instead of {shape}"
            for name, shape in initial.items()
            if name in new and new[name] != shape
        ]
        text = " and ".join(texts)
        raise FedloomError(
            f"the state of a client that a method returned from `end` or `aggregate` {text}",
            advice="return the tensors of the client that `init` made",
        )

    def drop(self, names: Collection[str]) -> ClientStates:
        """Return the clients without all keys of the given names, at any depth."""
        spans = self._spans(trees.drop(self._leaf_numbers(), names))
        return replace(self, initial=trees.drop(self.initial, names), spans=spans)

    def _leaf_numbers(self) -> Tree:
        """Return a tree with the number of each leaf of ``initial``."""
        return trees.unflatten(self.initial, list(torch.arange(len(self.spans))))

    def _spans(self, numbers: Tree) -> list[Span]:
        """Return the spans of the leaves of a part of `_leaf_numbers`."""
        return [self.spans[int(number)] for number in trees.leaves(numbers)]

    def to_message(self) -> Tree:
        """Return a tree of everything that is not known before round 1, in memory."""
        ids = sorted(self.rows)
        return {
            "initial": dict(self.initial),
            "ids": torch.tensor(ids, dtype=torch.int64),
            "rows": self._stack_rows(ids),
        }

    def to_checkpoint(self) -> Tree:
        """Return the tree for a checkpoint, of which ``file`` is a part if rows are there.

        It then has ``places`` instead of ``rows``: the numbers of the rows in the file, and the
        SHA-256 ``digests`` of them.
        """
        if not self.are_in_file:
            return self.to_message()
        ids = sorted(self.rows)
        places = [place for client in ids if isinstance(place := self.rows[client], Place)]
        self.file.seal(places)
        digests = np.frombuffer(b"".join(place.digest for place in places), np.uint8)
        return {
            "initial": dict(self.initial),
            "ids": torch.tensor(ids, dtype=torch.int64),
            "places": torch.tensor([place.number for place in places], dtype=torch.int64),
            "digests": torch.from_numpy(digests.reshape(len(places), -1).copy()),
        }

    def from_checkpoint(
        self, checkpoint: Tree, folder: Path | None = None, row_file: Path | None = None
    ) -> ClientStates:
        """Return these clients, which are those before round 1, as a checkpoint has them.

        Args:
            checkpoint: Result of `to_checkpoint` or `to_message`.
            folder: Folder of the ``file`` of the result.
            row_file: The checkpoint's own file, if it has ``places``. The rows are copied.
        """
        clients = self.from_initial(checkpoint["initial"], self.facts, self.count)
        clients.file.folder = folder
        if row_file is None:
            return clients.replace_clients(checkpoint["ids"], checkpoint["rows"])
        chunks = read_rows(row_file, clients.file.row_bytes, checkpoint["places"].tolist())
        return clients._with_rows(checkpoint["ids"].tolist(), chunks)


def _pack(stacks: Sequence[Tensor], spans: Sequence[Span], count: int, size: int) -> np.ndarray:
    """Return the rows of stacked leaves, uint8 [count, size]."""
    rows = np.zeros((count, size), np.uint8)
    content = torch.from_numpy(rows)
    for stack, (begin, end) in zip(stacks, spans, strict=True):
        # A trial on the meta device has shapes alone.
        if end > begin and not stack.is_meta:
            content[:, begin:end] = _bytes(stack)
    return rows


def _bytes(stack: Tensor) -> Tensor:
    """Return the bytes of a stack of leaves, [m, bytes of a leaf]; no copy of a contiguous one."""
    flat = stack.detach().contiguous().view(-1)
    return flat.view(torch.uint8).view(len(stack), -1)


def _copy(leaf: Tensor) -> Tensor:
    return leaf.detach().clone(memory_format=torch.contiguous_format)
