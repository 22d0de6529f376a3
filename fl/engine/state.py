"""The state of a run between rounds, the schedule of a round, and the results of a phase.

The trees of all clients are in host memory or, if they are many, in a file. Clients that never took
part take no room.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import VARIABLE_GROUPS
from fl.api.training import Training
from fl.api.trees import Tree
from fl.base.errors import FedloomError
from fl.base.row_file import Place, RowFile, read_rows, rows_at_once
from fl.base.units import object_text
from fl.engine.batches import Schedule
from fl.engine.client_data import ClientData
from fl.engine.sample_arrays import Arrays

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
        [row] = _pack([leaf[None] for leaf in leaves], spans, size, 1)
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
        numbered = trees.leaves({key: self._leaf_numbers()[key]})
        stacks = self._stack(range(self.count), [int(number) for number in numbered])
        return trees.unflatten({key: self.initial[key]}, stacks)[key]

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
        own = trees.take(self._stack_rows([client]), 0) if client in self.rows else self.initial
        return {**own, **facts}

    def take(self, clients: Tensor | Sequence[int]) -> Tree:
        """Stack the trees of some clients, in the given order."""
        index = torch.as_tensor(clients, dtype=torch.int64)
        facts = {key: fact[index] for key, fact in self.facts.items()}
        return {**self._stack_rows(index.tolist()), **facts}

    def _stack_rows(self, clients: Sequence[int]) -> Tree:
        """Stack the trees of some clients, without ``facts``."""
        return trees.unflatten(self.initial, self._stack(clients, range(len(self.spans))))

    def _stack(self, clients: Sequence[int], numbers: Sequence[int]) -> list[Tensor]:
        """Stack some leaves of some clients; the leaves are given by their numbers."""
        leaves, spans = trees.leaves(self.initial), [self.spans[number] for number in numbers]
        begin, end = (spans[0][0], spans[-1][1]) if spans else (0, 0)
        shapes = [leaves[number] for number in numbers]
        stacks = [torch.empty((len(clients), *leaf.shape), dtype=leaf.dtype) for leaf in shapes]
        size = rows_at_once(end - begin)
        for first in range(0, len(clients) if end > begin else 0, size):
            some = slice(first, first + size)
            content = torch.from_numpy(self._read(clients[some], begin, end))
            for stack, (left, right) in zip(stacks, spans, strict=True):
                if right > left:
                    _bytes(stack[some]).copy_(content[:, left - begin : right - begin])
        return stacks

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
            FedloomError: If one of the ``facts`` has changed, for `check_keys`, or if the disk of
                ``file`` is full or cannot be written.
        """
        self.check_keys(stack)
        for key, fact in self.facts.items():
            if key in stack and not torch.equal(fact[clients], stack[key]):
                raise FedloomError(
                    f"a method changed {key} of a client, which must stay as it is",
                    advice=f"return {key} unchanged from the method's functions",
                )
        leaves = trees.apply(lambda initial, leaf: leaf.to(initial.dtype), self.initial, stack)
        ids, stacks, size = clients.tolist(), trees.leaves(leaves), len(self.initial_row)
        count = len(self.rows) + sum(client not in self.rows for client in ids)
        step = rows_at_once(size)

        def chunks() -> Iterator[tuple[list[int], np.ndarray]]:
            for begin in range(0, len(ids), step):
                some = ids[begin : begin + step]
                rows = [leaf[begin : begin + step] for leaf in stacks]
                yield some, _pack(rows, self.spans, size, len(some))

        return self._with_rows(count, chunks())

    def _with_rows(
        self, count: int, chunks: Iterable[tuple[Sequence[int], np.ndarray]]
    ) -> ClientStates:
        """Return the clients with new rows for some of them.

        Args:
            count: Number of clients with a row afterwards.
            chunks: Clients and their rows, uint8 [m, row_bytes].
        """
        rows = {**self.rows}
        is_in_file = self.are_in_file
        if not is_in_file and count * len(self.initial_row) > MEMORY_BYTES:
            is_in_file = True
            held = (row for row in rows.values() if not isinstance(row, Place))
            rows = dict(zip(rows, self.file.write(held), strict=True))
        for clients, new in chunks:
            # A copy of each, so that no row keeps the memory of another one.
            stored = self.file.write(new) if is_in_file else [row.copy() for row in new]
            rows.update(zip(clients, stored, strict=True))
        return replace(self, rows=rows)

    def check_keys(self, stack: Tree) -> None:
        """Check that the trees of some clients have the tensors that they had before round 1.

        Args:
            stack: The trees, stacked.

        Raises:
            FedloomError: If a tensor is missing, unknown or of another shape. An unknown one would
                be forgotten, and the client would keep its earlier value without a word.
        """
        without_facts = {key: leaf for key, leaf in stack.items() if key not in self.facts}
        initial = {"/".join(path): [*leaf.shape] for path, leaf in leaf_paths(self.initial)}
        new = {"/".join(path): [*leaf.shape[1:]] for path, leaf in leaf_paths(without_facts)}
        if new == initial:
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
        remaining = trees.leaves(trees.drop(self._leaf_numbers(), names))
        spans = [self.spans[int(number)] for number in remaining]
        return replace(self, initial=trees.drop(self.initial, names), spans=spans)

    def _leaf_numbers(self) -> Tree:
        """Return a tree with the number of each leaf of ``initial``."""
        return trees.unflatten(self.initial, list(torch.arange(len(self.spans))))

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
        begun = self.from_initial(checkpoint["initial"], self.facts, self.count)
        begun.file.folder = folder
        if row_file is None:
            return begun.replace_clients(checkpoint["ids"], {**checkpoint["rows"]})
        ids = checkpoint["ids"].tolist()
        rest = iter(ids)
        stored = read_rows(row_file, begun.file.row_bytes, checkpoint["places"].tolist())
        return begun._with_rows(len(ids), (([*islice(rest, len(rows))], rows) for rows in stored))


def _pack(stacks: Sequence[Tensor], spans: Sequence[Span], size: int, count: int) -> np.ndarray:
    """Return the rows of stacked leaves, uint8 [count, size]."""
    rows = np.zeros((count, size), np.uint8)
    content = torch.from_numpy(rows)
    for stack, (begin, end) in zip(stacks, spans, strict=True):
        if end > begin:
            content[:, begin:end] = _bytes(stack)
    return rows


def _bytes(stack: Tensor) -> Tensor:
    """Return the bytes of a stack of leaves, [m, bytes of a leaf]; no copy of a contiguous one."""
    flat = stack.detach().contiguous().view(-1)
    return flat.view(torch.uint8).view(len(stack), -1)


def leaf_paths(
    tree: Tree, prefix: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Yield the path and the tensor of each leaf of a tree: ``("params", "0.weight")``."""
    for key, child in tree.items():
        path = (*prefix, key)
        if isinstance(child, Tensor):
            yield path, child
        else:
            yield from leaf_paths(child, path)


def returned_states(function: str, result: Any) -> tuple[Tree, Tree]:
    """Return the states of the server and of clients that a function of a method returned.

    Args:
        function: ``init`` or ``aggregate``.
        result: What it returned.

    Raises:
        FedloomError: If these are not two trees of tensors.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        problem = f"`{function}` of the method returns {object_text(result)}"
        advice = "write `return server, client`, with both states"
        raise FedloomError(problem, "the states of the server and of clients", advice)
    for name, tree in zip(("server", "client"), result, strict=True):
        _check_tensors(function, tree, name)
    return result


def _check_tensors(function: str, tree: Any, path: str) -> None:
    """Refuse a tree that contains something else than tensors."""
    if isinstance(tree, Mapping):
        for key, child in tree.items():
            _check_tensors(function, child, f"{path}/{key}")
    elif not isinstance(tree, Tensor):
        problem = f"`{function}` of the method returns {object_text(tree)} as {path}"
        raise FedloomError(problem, "tensors, in dictionaries", "torch.tensor(...) for a number")


def check_server(before: Tree, after: Tree, function: str, path: str = "server") -> None:
    """Refuse a server whose tensors are not of the names, shapes and types that they were of.

    Further tensors beside the model's are allowed.

    Args:
        before: The state of the server before a function of the method.
        after: The state after it.
        function: The name of the function.
        path: The place in the state.

    Raises:
        FedloomError: For the first tensor that is missing, unknown or differs.
    """
    is_of_model = path.rpartition("/")[2] in VARIABLE_GROUPS
    known = {**dict.fromkeys(after if is_of_model else ()), **before}
    for key, first in known.items():
        second = after.get(key)
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            check_server(first, second, function, f"{path}/{key}")
        elif not _are_alike(first, second):
            problem = f"`{function}` of the method returns {path}/{key} as {_leaf_text(second)}; "
            problem += f"it was {_leaf_text(first)}"
            advice = "return the tensors of before, with their shapes and types"
            raise FedloomError(problem, advice=advice)


def _are_alike(first: object, second: object) -> bool:
    """Whether both are tensors of one shape and type."""
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return False
    return first.shape == second.shape and first.dtype == second.dtype


def _leaf_text(value: object) -> str:
    """Return a tensor as text, ``float32 [200, 6]``, and nothing or a dictionary in words."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {[*value.shape]}"
    return "nothing" if value is None else "a dictionary"


def _copy(leaf: Tensor) -> Tensor:
    return leaf.detach().clone(memory_format=torch.contiguous_format)


HOST = torch.device("cpu")


@dataclass(frozen=True)
class State:
    """The state of a run between rounds.

    Attributes:
        server: The server's tree, on the device.
        clients: The trees of all clients, stacked, in host memory. A plain stacked tree is
            converted to `ClientStates`.
    """

    server: Tree
    clients: Tree

    def __post_init__(self) -> None:
        if not isinstance(self.clients, ClientStates):
            object.__setattr__(self, "clients", ClientStates.from_stack(self.clients))

    @property
    def client_states(self) -> ClientStates:
        """The clients as `ClientStates`."""
        assert isinstance(self.clients, ClientStates)
        return self.clients

    def client(self, number: int, device: torch.device) -> Tree:
        """Return one client's tree, on the device."""
        return trees.to(self.client_states.client(number), device)

    def stack_clients(self, numbers: Sequence[int] | Tensor, device: torch.device) -> Tree:
        """Return a stack of some clients, on the device."""
        return trees.to(self.client_states.take(numbers), device)


Schedules = tuple[Schedule | None, ...]
"""The batches of the passes of a phase; None for a pass that is left out of the round."""


@dataclass(frozen=True)
class PhaseSchedule:
    """The schedule of a phase: its participants and their batches.

    Attributes:
        clients: Their ids, int64 [m], in host memory.
        n: Their numbers of training samples, [m].
        schedules: Their batches in each pass, with rows in the same order.
    """

    clients: Tensor
    n: Tensor
    schedules: Schedules = ()

    def take(self, rows: np.ndarray) -> PhaseSchedule:
        """Return the schedule of some participants, in the given order."""
        index = torch.from_numpy(rows)
        schedules = tuple(schedule and schedule.take(rows) for schedule in self.schedules)
        return PhaseSchedule(self.clients[index], self.n[index.to(self.n.device)], schedules)

    def steps(self) -> np.ndarray:
        """Return the number of steps of each participant, [m]."""
        steps = np.zeros(len(self.clients), np.int64)
        for schedule in self.schedules:
            steps += 0 if schedule is None else schedule.steps
        return steps


@dataclass(frozen=True)
class RoundSchedule:
    """The schedule of a round: its participants, their batches, and settings of training.

    Attributes:
        round: Number of the round.
        phases: By phase, in the order of `Method.phases`; None for a phase that the round leaves
            out. The last one has the round's participants.
        arrays: The samples.
        training: Settings of training.
        steps_by_participant: Local steps in a round of every possible participant by its settings,
            int64; None if unknown.
    """

    round: int
    phases: tuple[PhaseSchedule | None, ...]
    arrays: Arrays
    training: Training
    steps_by_participant: np.ndarray | None = None

    def weights(self, n: Tensor) -> Tensor:
        """Return the weights of participants in means, from their numbers of training samples."""
        return (n > 0).to(n) if self.training.weighting == "uniform" else n

    @property
    def last_phase(self) -> PhaseSchedule:
        """The schedule of the last phase, which every round has."""
        assert self.phases[-1] is not None
        return self.phases[-1]

    @property
    def clients(self) -> Tensor:
        """The ids of the participants, int64 [m], in host memory."""
        return self.last_phase.clients

    @property
    def n(self) -> Tensor:
        """Numbers of training samples of the participants, [m]."""
        return self.last_phase.n

    @property
    def schedules(self) -> Schedules:
        """Batches of the participants in each pass of the last phase."""
        return self.last_phase.schedules

    def with_schedules(self, schedules: Iterable[Schedule | None]) -> RoundSchedule:
        """Return the schedule with other batches in the last phase."""
        last = replace(self.last_phase, schedules=tuple(schedules))
        return replace(self, phases=(*self.phases[:-1], last))


@dataclass(frozen=True)
class PhaseResults:
    """The results of one run's participants in a phase, a tree for each stack.

    Attributes:
        client_states: Trees that stay with the clients.
        uploads: Trees that the clients send.
        n: Weight of each upload in means, which the method's aggregate receives.
        losses: Mean training loss of each participant.
    """

    client_states: list[Tree] = field(default_factory=list)
    uploads: list[Tree] = field(default_factory=list)
    n: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)

    def add(
        self, client_states: Tree, uploads: Tree, n: Tensor, losses: Tensor, averaging: bool
    ) -> None:
        """Add a stack.

        Args:
            client_states: Trees that stay with its clients, stacked.
            uploads: Trees that its clients send, stacked.
            n: Weights of the uploads, [m].
            losses: Mean training losses, [m].
            averaging: Whether to average the uploads with earlier ones at once, and to move
                ``client_states`` to host memory.
        """
        if averaging:
            uploads, n = average_groups([*self.uploads, uploads], [*self.n, n])
            self.uploads.clear()
            self.n.clear()
            client_states = trees.to(client_states, HOST)
        self.client_states.append(client_states)
        self.uploads.append(uploads)
        self.n.append(n)
        self.losses.append(losses)


class Division:
    """A way to divide work; this one does not, so that one process does all of it.

    `fl.engine.processes` has another one.
    """

    def own_participants(self, schedules: Sequence[PhaseSchedule]) -> Sequence[PhaseSchedule]:
        """Return for each run the participants that this process trains."""
        return schedules

    def join_results(
        self, schedules: Sequence[PhaseSchedule], results: list[PhaseResults], averaging: bool
    ) -> list[PhaseResults]:
        """Join what `own_participants` gave with the results of all others.

        Args:
            schedules: The schedule of the phase of each run, with all participants.
            results: By run, the results of this process.
            averaging: Whether uploads are averaged, so that their order has no meaning.

        Returns:
            By run, the results of all participants.
        """
        return results

    def own_clients(self, data: ClientData) -> ClientData:
        """Return the samples of the clients that this process scores."""
        return data

    def join_metrics(self, rows: pd.DataFrame, stages: Sequence[str]) -> pd.DataFrame:
        """Join the metrics of `own_clients` with those of all others.

        Args:
            rows: Metrics of one round.
            stages: The stages, in their order.
        """
        return rows


UNDIVIDED = Division()


def average_groups(groups: Sequence[Tree], weights: Sequence[Tensor]) -> tuple[Tree, Tensor]:
    """Average stacks of uploads.

    Args:
        groups: Stacks of uploads.
        weights: Weights of the uploads of each stack, [m] each.

    Returns:
        A stack with one row, the weighted mean of all uploads, and the sum of the weights, [1].
    """
    sums = torch.stack([weight.sum() for weight in weights])
    # If all weights of a group are 0, its plain mean is taken, with weight 0.
    weights = [torch.where(total > 0, w, 1.0) for total, w in zip(sums, weights, strict=True)]
    group_means = [trees.mean(group, weight) for group, weight in zip(groups, weights, strict=True)]
    return trees.stack([trees.mean(trees.stack(group_means), sums)]), sums.sum(0, keepdim=True)
