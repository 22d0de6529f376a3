"""Operations and bytes of a client's round, counted by a dry round of the engine for one client.

Bytes are exactly those of the trees that are sent and received, without protocol. If upload
filters compress uploads (`fl.api.uploads`), bytes are those of the compressed messages. Operations
are those of matrix products and convolutions, forward and backward, as PyTorch counts them.

Formulas of operations are those of `torch.utils.flop_counter.FlopCounterMode`. That class itself
imports PyTorch's compiler at its first use, which takes one or two seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from fl.api import trees
from fl.api.method import PAYLOAD, Method, Pass, Sweep
from fl.api.protocols import Payload
from fl.api.trees import Tree
from fl.api.uploads import without_upload_state
from fl.engine import dry_round
from fl.engine.client_data import ClientData
from fl.engine.simulation import Simulation
from fl.engine.state import HOST, State
from fl.pytorch.torch_internals import DispatchMode

FORMULAS: Mapping[Any, Callable[..., int]] = flop_registry


class OperationCounter(DispatchMode):
    """Counts the operations within the context.

    Attributes:
        total: Floating-point operations so far.
        calls: Operations on tensors so far, whatever their cost.
        read_addresses: Addresses (`storage_address`) of the tensors that operations have read.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = self.calls = 0
        self.read_addresses = set[int]()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Count one operation, or the operations that it consists of."""
        keyword_arguments = dict(kwargs or {})
        with self:
            result = func.decompose(*args, **keyword_arguments)
        if result is not NotImplemented:
            return result
        result = func(*args, **keyword_arguments)
        self.calls += 1
        self.read_addresses.update(
            map(storage_address, _tensors((args, keyword_arguments.values())))
        )
        formula = FORMULAS.get(func.overloadpacket)
        if formula is not None:
            self.total += formula(*args, **keyword_arguments, out_val=result)
        return result


def storage_address(tensor: Tensor) -> int:
    """Return the memory address that a tensor shares with its views while one of them exists."""
    return tensor.untyped_storage().data_ptr()


def _tensors(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among arguments and in nested lists."""
    for value in arguments:
        if isinstance(value, Tensor):
            yield value
        elif not isinstance(value, (str, Mapping)) and isinstance(value, Iterable):
            yield from _tensors(value)


def count_stated_steps(pass_: Pass | Sweep, round_: int) -> int:
    """Return the number of steps that a pass states for a round; 1 if samples decide it."""
    sampling = pass_.sampling if isinstance(pass_, Pass) else pass_
    if not sampling.is_active(round_):
        return 0
    stated = pass_.sampling.steps if isinstance(pass_, Pass) else None
    return 1 if stated is None else stated(round_)


@dataclass(frozen=True)
class Counts:
    """Operations of one client's pass.

    Attributes:
        step: Floating-point operations of a step; for a sweep, of a sample.
        once: Floating-point operations of the functions that begin and end the pass.
        calls: Operations on tensors in a step, whatever their cost; 0 for a sweep.
        refreshes: Floating-point operations of each refresh.
        memory: Bytes of the leaves of the server's and the work tree that a step reads, without the
            state of the optimizer; 0 for a sweep.
    """

    step: int
    once: int
    calls: int = 0
    refreshes: tuple[int, ...] = ()
    memory: int = 0


@dataclass(frozen=True)
class Work:
    """A pass and its operations.

    Attributes:
        pass_: The pass.
        steps: Steps of m typical clients, [m], as multiples of the steps that the pass states; for
            a sweep, numbers of samples.
        clients: Number of clients that each typical client represents, [m].
        counts: Operations of the pass.
    """

    pass_: Pass | Sweep
    steps: np.ndarray
    clients: np.ndarray
    counts: Counts

    def flops(self, round_: int) -> float:
        """Return the floating-point operations in a round, mean over clients."""
        return float(np.average(self.flops_by_client(round_), weights=self.clients))

    def flops_by_client(self, round_: int) -> np.ndarray:
        """Return the floating-point operations of each typical client in a round, [m]."""
        stated, counts = count_stated_steps(self.pass_, round_), self.counts
        steps = self.steps * stated
        flops = counts.step * steps + counts.once * (stated > 0)
        if isinstance(self.pass_, Pass):
            for refresh_flops, refresh in zip(counts.refreshes, self.pass_.refreshes, strict=True):
                flops = flops + refresh_flops * np.array(
                    [refresh.count_in_round(int(number)) for number in steps]
                )
        return flops


@dataclass
class ShortRound:
    """Bytes and operations of one client's round.

    Attributes:
        down: Bytes that the client receives.
        up: Bytes that the client sends.
        work: The passes of the client.
        typical: For each client that can take part, the number of its typical client.
        received: Tensors that the client has received; tensors hash by identity.
    """

    down: int = 0
    up: int = 0
    work: list[Work] = field(default_factory=list)
    typical: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    received: set[Tensor] = field(default_factory=set)

    def receive(self, message: Tree) -> None:
        """Count the tensors of a message that the client has not received before."""
        new = [leaf for leaf in trees.leaves(message) if leaf not in self.received]
        self.down += sum(leaf.numel() * leaf.element_size() for leaf in new)
        self.received.update(new)

    def count_payload(self, server: Tree, client: Tree, *, make_payload: Payload) -> Tree:
        """Count the payload that a phase makes for the client, and return it."""
        payload = make_payload(server, client)
        self.down += trees.nbytes(payload)
        return payload


def short_round(simulation: Simulation, state: State, round_: int) -> ShortRound:
    """Run a round of the client with most samples, with one step of each pass, and count.

    Args:
        simulation: The run.
        state: A state of the run.
        round_: Number of the round.

    Returns:
        Bytes and operations.
    """
    data, typical = _typical_clients(simulation.client_data)
    clients = np.bincount(typical)
    short = replace(
        simulation,
        method=dry_round.with_single_steps(simulation.method),
        training=replace(simulation.training, participation=1.0),
        client_data=data,
        participation=None,
    )
    schedule = short.round_schedule(round_)
    result, payload_is_new = ShortRound(typical=typical), True
    operations = OperationCounter()
    row = schedule.n.argmax()[None].cpu().numpy()
    phases = zip(short.method.phases, simulation.method.phases, schedule.phases, strict=True)
    for number, (phase, original, phase_schedule) in enumerate(phases):
        if phase_schedule is None or not any(phase_schedule.schedules):
            continue
        message = dict(phase.send(state.server) if phase.send else state.server)
        result.receive(without_upload_state(message))
        if payload_is_new and not phase.payload:
            result.down += trees.nbytes(state.client_states.initial.get(PAYLOAD, {}))
        one_client = phase_schedule.take(row)
        counters = [_PassCounter(operations) for _ in phase.passes]
        counted_phase = replace(
            phase,
            passes=tuple(
                counter.wrap_pass(p) for counter, p in zip(counters, phase.passes, strict=True)
            ),
            send=lambda server, message=message: message,
            payload=phase.payload and partial(result.count_payload, make_payload=phase.payload),
        )
        # A network that has not trained yet looks at itself first, which is no work of a client.
        dry_round.run_first_steps(
            replace(phase, send=counted_phase.send), state, one_client, schedule, "loop"
        )
        with operations:
            answers = dry_round.run_first_steps(counted_phase, state, one_client, schedule, "loop")
        for counter, pass_, batches in zip(
            counters, original.passes, phase_schedule.schedules, strict=True
        ):
            if batches is not None:
                is_sweep = isinstance(pass_, Sweep)
                steps = batches.weight.sum((1, 2)) if is_sweep else batches.steps
                result.work.append(Work(pass_, steps, clients, counter.counts(pass_)))
        [client_states], [uploads], [n] = answers.client_states, answers.uploads, answers.n
        is_last = number + 1 == len(schedule.phases)
        upload_bytes = simulation.method.upload_bytes if is_last else None
        result.up += upload_bytes(uploads) if upload_bytes else trees.nbytes(uploads)
        if not is_last:  # The result of the last phase is not needed.
            server, new_states = phase.aggregate(state.server, client_states, uploads, n)
            payloads = [trees.leaves(tree.get(PAYLOAD, {})) for tree in (client_states, new_states)]
            payload_is_new = not _are_identical(*payloads)
            client_states = trees.to(new_states, HOST)
            state = State(
                server, state.client_states.replace_clients(one_client.clients, client_states)
            )
    return result


def _are_identical(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Whether two lists contain the same objects."""
    return len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))


def _typical_clients(data: ClientData) -> tuple[ClientData, np.ndarray]:
    """Keep one client of each group whose clients have equal numbers of samples in each split.

    Such clients take the same steps. The second result is the group of each client that can take
    part; groups are in the order of their first clients.
    """
    sizes = np.stack([data.sizes(split) for split in data.samples], axis=1)[data.participants]
    _, first, group = np.unique(sizes, axis=0, return_index=True, return_inverse=True)
    absent = np.setdiff1d(np.arange(data.clients), data.participants[first])
    rank = np.empty(len(first), np.int64)
    rank[first.argsort()] = np.arange(len(first))
    return replace(data, absent_clients=tuple(absent.tolist())), rank[group.reshape(-1)]


def active_parts(method: Method, round_: int) -> tuple[bool | tuple[bool, ...], ...]:
    """Return which phases and passes of a method take place in a round."""
    return tuple(
        phase.is_active(round_)
        and tuple(count_stated_steps(pass_, round_) > 0 for pass_ in phase.passes)
        for phase in method.phases
    )


class _PassCounter:
    """Records the counts before and after each function of a pass.

    Args:
        operations: The counter of all operations.
    """

    def __init__(self, operations: OperationCounter) -> None:
        self._operations, self._totals, self._calls = operations, list[int](), list[int]()
        self._memory = 0

    def wrap_pass(self, pass_: Pass | Sweep) -> Pass | Sweep:
        """Return the pass with functions that are counted."""
        if isinstance(pass_, Sweep):
            return replace(pass_, look=self._counted(pass_.look), end=self._counted(pass_.end))
        read, leaves = self._operations.read_addresses, list[Tensor]()

        def begin(server: Tree, client: Tree) -> Tree:
            # A copy, so that the work tree and the server's tree are different tensors.
            work = trees.apply(Tensor.clone, pass_.begin(server, client))
            counted = {key: tree for key, tree in work.items() if key != "optimizer"}
            leaves[:] = trees.leaves(server) + trees.leaves(counted)
            read.clear()
            return work

        def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
            read_leaves = [leaf for leaf in leaves if storage_address(leaf) in read]
            self._memory = sum(leaf.numel() * leaf.element_size() for leaf in read_leaves)
            return pass_.end(server, client, work)

        return replace(
            pass_,
            begin=self._counted(begin),
            update=self._counted(pass_.update),
            refreshes=tuple(replace(r, adapt=self._counted(r.adapt)) for r in pass_.refreshes),
            end=self._counted(end),
        )

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any) -> Any:
            self._record()
            result = function(*arguments)
            self._record()
            return result

        return call

    def _record(self) -> None:
        self._totals.append(self._operations.total)
        self._calls.append(self._operations.calls)

    def counts(self, pass_: Pass | Sweep) -> Counts:
        """Return the operations of the pass."""
        before_begin, after_begin, *steps, before_end, after_end = self._totals
        if isinstance(pass_, Sweep):
            return Counts(after_begin - before_begin, after_end - before_end)
        # Differences between the end of each function and that of the next.
        step, *refreshes = np.diff([after_begin, *steps[1::2]]).tolist() or [0]
        once = after_begin - before_begin + after_end - before_end
        calls = self._calls[-2] - self._calls[1]
        return Counts(step, once, calls, tuple(refreshes), self._memory)
