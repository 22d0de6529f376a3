"""What a run costs: bytes between server and clients, operations of both, and kept state.

Bytes are exactly those of the trees that are sent and received, without compression or protocol.
Operations are those of matrix products and convolutions, forward and backward, as PyTorch counts
them. Nothing here decides a number of a run; costs are measured when a run is finished.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
from torch import Tensor

from fl.api import trees
from fl.api.method import COUNTS, MODALITY, PAYLOAD, Method, Pass, Sweep
from fl.api.trees import Tree
from fl.engine.backends import BACKENDS, Cohort
from fl.engine.batches import Schedule
from fl.engine.modality import state_of
from fl.engine.simulation import Simulation
from fl.engine.state import RoundPlan, State
from fl.engine.sweeps import sweep
from fl.pytorch.operations import Operations

logger = logging.getLogger(__name__)

KNOWN = ("id", COUNTS, MODALITY, PAYLOAD)
"""What a client has of itself, or is only lent."""

ONCE = 2**62
"""A refresh that comes after the first step and, in any round, never again."""


@dataclass(frozen=True)
class Costs:
    """The costs of a run as planned, per participant and round where not said otherwise.

    Stragglers count as if they did all their work.

    Attributes:
        participants: Clients that take part in a round.
        traffic: ``[rounds, down, up]`` for each stretch of equal rounds, in order: the bytes that a
            participant receives and sends in each of them.
        bytes_down, bytes_up: Their means over rounds.
        flops: Floating-point operations, mean over clients and rounds.
        flops_server: Those of the steps that the server computes (`fl.api.method.ServerWork`), mean
            over rounds; not of means, nor of what methods do not declare.
        state_client: Bytes that a client keeps between rounds.
        state_server: Bytes that the server keeps, those for each client included.
    """

    participants: int
    traffic: list[list[int]]
    bytes_down: float
    bytes_up: float
    flops: float
    flops_server: float
    state_client: int
    state_server: int


def recorded(simulation: Simulation, state: State) -> dict[str, Any]:
    """The costs in ``run.json``, or the reason why they cannot be measured."""
    try:
        return asdict(measure(simulation, state))
    except Exception as error:  # A method of a user's own; its run is finished all the same.
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        logger.warning("costs cannot be told: %s", reason)
        return {"unknown": reason}


def largest_step(simulation: Simulation) -> tuple[int, int]:
    """Calls and floating-point operations in a client's step in round 1, at most."""
    counts = [work.counts for work in _look(simulation, simulation.begin(), 1).work]
    calls = max((count.calls for count in counts), default=0)
    return calls, max((count.step for count in counts), default=0)


def measure(simulation: Simulation, state: State) -> Costs:
    """The costs of a run. Where clients differ in modality: means, bytes to the nearest whole one.

    Args:
        state: Any state of the run.
    """
    if simulation.by_modality:
        return _over_modalities(simulation, state)
    simulation = replace(simulation, training=replace(simulation.training, stragglers=0.0))
    rounds = range(1, simulation.training.rounds + 1)
    each = list(_rounds(simulation, state, rounds))
    alike = groupby((down, up) for down, up, _ in each)
    down, up, flops = (sum(parts) / len(each) for parts in zip(*each, strict=True))
    client, given = _kept(state)
    return Costs(
        participants=len(simulation.plan(1).clients),
        traffic=[[len(list(same)), *sizes] for sizes, same in alike],
        bytes_down=down,
        bytes_up=up,
        flops=flops,
        flops_server=_of_server(simulation.method, state.server, rounds),
        state_client=client,
        state_server=trees.nbytes(state.server) + given,
    )


def _of_server(method: Method, server: Tree, rounds: Sequence[int]) -> float:
    """Operations of the server's own steps, mean over rounds; one step of each kind is taken."""
    total = 0
    for work in method.works:
        with Operations() as counter:
            work.step(server)
        total += counter.total * sum(map(work.steps, rounds))
    return total / len(rounds)


def _over_modalities(simulation: Simulation, state: State) -> Costs:
    found = [
        measure(one, state_of(part, state))
        for part, one in zip(simulation.method.by_modality, simulation.by_modality, strict=True)
    ]
    shares = np.array([len(one.client_data.participants) for one in simulation.by_modality], float)
    shares /= shares.sum()

    def mean(values: Sequence[float]) -> float:
        return float(shares @ np.array(values))

    each = [[sizes for n, *sizes in one.traffic for _ in range(n)] for one in found]
    rounds = [
        tuple(round(mean(part)) for part in zip(*sizes, strict=True))
        for sizes in zip(*each, strict=True)
    ]
    return Costs(
        participants=len(simulation.plan(1).clients),
        traffic=[[len(list(same)), *sizes] for sizes, same in groupby(rounds)],
        bytes_down=mean([one.bytes_down for one in found]),
        bytes_up=mean([one.bytes_up for one in found]),
        flops=mean([one.flops for one in found]),
        flops_server=sum(one.flops_server for one in found),
        state_client=round(mean([one.state_client for one in found])),
        state_server=trees.nbytes(state.server),
    )


def _kept(state: State) -> tuple[int, int]:
    """Bytes that a client keeps, and bytes that the server keeps for all clients until it sends
    them.

    A client's number and class counts are left out: it knows them itself.
    """
    one = state.client_states.initial
    given = trees.nbytes(one.get(PAYLOAD, {})) * state.client_states.count
    return trees.nbytes({k: leaf for k, leaf in one.items() if k not in KNOWN}), given


def _rounds(
    simulation: Simulation, state: State, rounds: Sequence[int]
) -> Iterator[tuple[int, int, float]]:
    """Bytes down and up and operations of each round; equal rounds are measured once."""
    phases = simulation.method.phases
    seen: dict[Any, _Seen] = {}
    for number in rounds:
        pattern = tuple(
            tuple(bool(_steps(part, number)) for part in one.passes) if one.due(number) else None
            for one in phases
        )
        if pattern not in seen:
            seen[pattern] = _look(simulation, state, number)
        found = seen[pattern]
        yield found.down, found.up, found.flops(number)


def _steps(part: Pass | Sweep, round_: int) -> int:
    """The number of steps that a pass states for a round; 1 where it follows from the samples."""
    draws = part.sampling if isinstance(part, Pass) else part
    if not draws.due(round_):
        return 0
    told = part.sampling.steps if isinstance(part, Pass) else None
    return 1 if told is None else told(round_)


@dataclass(frozen=True)
class _Counts:
    """Operations of one client's pass.

    Attributes:
        step: Of a step; for a sweep, of a sample.
        once: Of what begins and ends the pass.
        calls: Operations on tensors in a step, whatever they take; 0 for a sweep.
        refreshes: Of each refresh, once.
    """

    step: int
    once: int
    calls: int = 0
    refreshes: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Work:
    """A pass and its operations.

    Attributes:
        steps: Of every client, [K], to be multiplied by the steps that the pass itself states; for
            a sweep the number of samples.
    """

    part: Pass | Sweep
    steps: np.ndarray
    counts: _Counts

    def flops(self, round_: int) -> float:
        """The mean over clients."""
        stated = _steps(self.part, round_)
        steps = self.steps * stated
        total = float(self.counts.step * steps.sum() + self.counts.once * len(steps) * (stated > 0))
        if isinstance(self.part, Pass):
            sizes = list(zip(*np.unique(steps, return_counts=True), strict=True))
            for once, refresh in zip(self.counts.refreshes, self.part.refreshes, strict=True):
                total += once * sum(refresh.times(int(s)) * int(n) for s, n in sizes)
        return total / len(steps)


@dataclass
class _Seen:
    """One client's round.

    Attributes:
        known: The tensors received from the server. They are kept alive, so that no other tensor
            gets the identity of one of them.
    """

    down: int = 0
    up: int = 0
    work: list[_Work] = field(default_factory=list)
    known: list[Tensor] = field(default_factory=list)

    def receive(self, sent: Tree) -> None:
        """The part of what is sent to all that the client does not have yet."""
        have = set(map(id, self.known))
        new = [leaf for leaf in trees.leaves(sent) if id(leaf) not in have]
        self.down += sum(leaf.numel() * leaf.element_size() for leaf in new)
        self.known += new

    def flops(self, round_: int) -> float:
        """Operations of a round like it, mean over clients."""
        return sum(work.flops(round_) for work in self.work)


def _look(simulation: Simulation, state: State, round_: int) -> _Seen:
    """A round of one client, with one step of each pass, as `fl.engine.engine` goes through
    it.
    """
    everybody = replace(simulation.training, participation=1.0)
    short = replace(simulation, method=_shortened(simulation.method), training=everybody)
    plan = short.plan(round_)
    row = int(plan.n.argmax())
    clients: Tree = trees.to(trees.take(state.clients, plan.clients[[row]]), plan.arrays.device)
    server: Tree = state.server
    seen, fresh = _Seen(), True
    pairs = zip(short.method.phases, simulation.method.phases, strict=True)
    for number, (phase, whole) in enumerate(pairs):
        roster = plan.rosters[number]
        if roster is None or not any(roster.schedules):
            continue
        sent = dict(phase.send(server) if phase.send else server)
        seen.receive(sent)
        if phase.payload:
            payload = trees.vmap(phase.payload, (None, 0))(server, clients)
            clients = {**clients, PAYLOAD: payload}
        if phase.payload or fresh:
            seen.down += trees.nbytes(clients.get(PAYLOAD, {}))
        upload: Tree = {}
        for part, stated, schedule in zip(
            phase.passes, whole.passes, roster.schedules, strict=True
        ):
            if schedule is not None:
                cohort = _cohort(clients, sent, plan, schedule, row)
                if isinstance(part, Sweep):
                    clients, upload, counts = _swept(part, cohort, upload)
                    steps = schedule.weight.sum((1, 2))
                else:
                    clients, upload, counts = _trained(part, cohort)
                    steps = schedule.steps
                seen.work.append(_Work(stated, steps, counts))
        seen.up += trees.nbytes(upload)
        if phase.payload:
            clients = {key: leaf for key, leaf in clients.items() if key != PAYLOAD}
        if number + 1 < len(plan.rosters):  # What comes of the last is not asked.
            server, after = phase.aggregate(server, clients, upload, plan.n[[row]])
            old, new = (trees.leaves(tree.get(PAYLOAD, {})) for tree in (clients, after))
            fresh, clients = list(map(id, old)) != list(map(id, new)), after
    return seen


def _shortened(method: Method) -> Method:
    """The method with one step in each pass that states its steps, and one refresh."""

    def short(part: Pass | Sweep) -> Pass | Sweep:
        if isinstance(part, Sweep):
            return part
        draws, told = part.sampling, part.sampling.steps
        if told is not None:
            draws = replace(draws, steps=lambda round_: min(1, told(round_)))
        refreshes = tuple(replace(one, every=ONCE, first=1) for one in part.refreshes)
        return replace(part, sampling=draws, refreshes=refreshes)

    before = tuple(replace(one, passes=tuple(map(short, one.passes))) for one in method.before)
    return replace(method, passes=tuple(map(short, method.passes)), before=before)


def _cohort(clients: Tree, sent: Tree, plan: RoundPlan, schedule: Schedule, row: int) -> Cohort:
    """A cohort of the one client."""
    ids, own = plan.clients[[row]], schedule.take(np.array([row]))
    return Cohort(dict(clients), ids, sent, False, own, plan.arrays, plan.round, plan.lr)


Result = tuple[Tree, Tree, _Counts]
"""What a client keeps and what it sends after a short pass, and the operations."""


def _swept(part: Sweep, cohort: Cohort, sent: Tree) -> Result:
    """After a look at one sample."""
    schedule = cohort.schedule
    index, weight = schedule.index[:, :1, :1], schedule.weight[:, :1, :1]
    short = replace(cohort, schedule=Schedule(index, weight, schedule.steps.clip(max=1)))
    once, whole = Operations(), Operations()
    with whole:
        kept, upload = sweep(replace(part, end=_counted(part.end, once)), short, sent, "loop")
    return kept, upload, _Counts(whole.total - once.total, once.total)


def _trained(part: Pass, cohort: Cohort) -> Result:
    """After one step."""
    refreshing = [_stepped(part, cohort, (number,))[2] for number in range(len(part.refreshes))]
    kept, upload, alone = _stepped(part, cohort, ())
    refreshes = tuple(counts.step - alone.step for counts in refreshing)
    return kept, upload, replace(alone, refreshes=refreshes)


def _stepped(part: Pass, cohort: Cohort, refreshes: tuple[int, ...]) -> Result:
    """After one step with these of the refreshes."""
    once, whole = Operations(), Operations()
    short = replace(
        part,
        begin=_counted(part.begin, once),
        end=_counted(part.end, once),
        refreshes=tuple(part.refreshes[number] for number in refreshes),
    )
    extra = tuple(cohort.schedule.extra[number] for number in refreshes)
    schedule = replace(cohort.schedule, extra=extra).begin(1, short.refreshes)
    with whole:
        kept, upload, _ = BACKENDS["loop"](short, replace(cohort, schedule=schedule))
    step, calls = whole.total - once.total, whole.calls - once.calls
    return kept, upload, _Counts(step, once.total, calls)


def _counted(function: Callable[..., Any], counter: Operations) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        with counter:
            return function(*given)

    return call
