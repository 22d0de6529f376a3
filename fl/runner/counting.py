"""Bytes and operations of a round of one client, which the engine takes with one step a pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any

import numpy as np
from torch import Tensor

from fl.api import trees
from fl.api.method import PAYLOAD, Method, Pass, Phase, Sweep
from fl.api.protocols import Begin, Payload
from fl.api.trees import Tree
from fl.api.uploads import without_upload_state
from fl.engine import engine
from fl.engine.batches import Schedule
from fl.engine.client_data import ClientData
from fl.engine.simulation import Simulation
from fl.engine.state import HOST, State
from fl.pytorch.operations import OperationCounter, storage_address

ONCE = 2**62
"""A refresh that comes after the first step and, in any round, never again."""


def steps_stated(pass_: Pass | Sweep, round_: int) -> int:
    """The number of steps that a pass states for a round; 1 where it follows from the samples."""
    sampling = pass_.sampling if isinstance(pass_, Pass) else pass_
    if not sampling.is_active(round_):
        return 0
    stated = pass_.sampling.steps if isinstance(pass_, Pass) else None
    return 1 if stated is None else stated(round_)


@dataclass(frozen=True)
class Counts:
    """Operations of one client's pass.

    Attributes:
        step: Of a step; for a sweep, of a sample.
        once: Of what begins and ends the pass.
        calls: Operations on tensors in a step, whatever they take; 0 for a sweep.
        refreshes: Of each refresh, once.
        memory: Bytes of what the step reads of the server's and the work tree, the optimizer's
            state left out; 0 for a sweep.
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
        steps: Of clients, [m], to be multiplied by the steps that the pass itself states; for a
            sweep the number of samples.
        clients: How many clients each of them stands for, [m].
    """

    pass_: Pass | Sweep
    steps: np.ndarray
    clients: np.ndarray
    counts: Counts

    def flops(self, round_: int) -> float:
        """The mean over clients."""
        stated, counts = steps_stated(self.pass_, round_), self.counts
        steps = self.steps * stated
        each = counts.step * steps + counts.once * (stated > 0)
        if isinstance(self.pass_, Pass):
            for once, refresh in zip(counts.refreshes, self.pass_.refreshes, strict=True):
                each = each + once * np.array(
                    [refresh.count_in_round(int(number)) for number in steps]
                )
        return float(np.average(each, weights=self.clients))


@dataclass
class ShortRound:
    """One client's round.

    Attributes:
        down, up: Bytes that it receives and sends.
        known: The tensors received from the server. They are kept alive, so that no other tensor
            gets the identity of one of them.
    """

    down: int = 0
    up: int = 0
    work: list[Work] = field(default_factory=list)
    known: list[Tensor] = field(default_factory=list)

    def receive(self, sent: Tree) -> None:
        """What of it the client does not have yet."""
        have = set(map(id, self.known))
        new = [leaf for leaf in trees.leaves(sent) if id(leaf) not in have]
        self.down += sum(leaf.numel() * leaf.element_size() for leaf in new)
        self.known += new

    def payload(self, server: Tree, client: Tree, *, of: Payload) -> Tree:
        """What a phase's ``payload`` makes for the client."""
        given = of(server, client)
        self.down += trees.nbytes(given)
        return given


def short_round(simulation: Simulation, state: State, round_: int) -> ShortRound:
    """A round of the client with most samples, with one step of each pass."""
    everybody = replace(simulation.training, participation=1.0)
    data, clients = _unlike(simulation.client_data)
    short = replace(
        simulation,
        method=_shortened(simulation.method),
        training=everybody,
        client_data=data,
    )
    plan, done, renewed = replace(short.round_schedule(round_), team=None), ShortRound(), True
    operations = OperationCounter()
    row = plan.n.argmax()[None].cpu().numpy()
    phases = zip(short.method.phases, simulation.method.phases, plan.rosters, strict=True)
    for number, (phase, stated, roster) in enumerate(phases):
        if roster is None or not any(roster.schedules):
            continue
        sent = dict(phase.send(state.server) if phase.send else state.server)
        done.receive(without_upload_state(sent))
        if renewed and not phase.payload:
            done.down += trees.nbytes(state.client_states.initial.get(PAYLOAD, {}))
        alone = roster.take(row)
        first = [s and _first(p, s) for p, s in zip(phase.passes, alone.schedules, strict=True)]
        laps = [_Laps(operations) for _ in phase.passes]
        watched = replace(
            phase,
            passes=tuple(lap.watched(p) for lap, p in zip(laps, phase.passes, strict=True)),
            send=lambda server, sent=sent: sent,
            payload=phase.payload and partial(done.payload, of=phase.payload),
        )
        alone = replace(alone, schedules=tuple(first))
        with operations:
            [answers] = engine.run_phase(watched, [state], [alone], plan, "loop")
        for lap, pass_, schedule in zip(laps, stated.passes, roster.schedules, strict=True):
            if schedule is not None:
                sweep = isinstance(pass_, Sweep)
                steps = schedule.weight.sum((1, 2)) if sweep else schedule.steps
                done.work.append(Work(pass_, steps, clients, lap.counts(pass_)))
        [kept], [uploads], [n] = answers.client_states, answers.uploads, answers.n
        last = number + 1 == len(plan.rosters)
        told = simulation.method.upload_bytes if last else None
        done.up += told(uploads) if told else trees.nbytes(uploads)
        if not last:  # What comes of the last is not asked.
            server, after = phase.aggregate(state.server, kept, uploads, n)
            old, new = (trees.leaves(tree.get(PAYLOAD, {})) for tree in (kept, after))
            renewed = list(map(id, old)) != list(map(id, new))
            state = State(
                server, state.client_states.replace_clients(alone.clients, trees.to(after, HOST))
            )
    return done


def _unlike(data: ClientData) -> tuple[ClientData, np.ndarray]:
    """The same data, of which the first client of each kind takes part, and how many are of its
    kind: those who have as many samples in each split take the same steps.
    """
    sizes = np.stack([data.sizes(split) for split in data.samples], axis=1)[data.participants]
    _, first, alike = np.unique(sizes, axis=0, return_index=True, return_counts=True)
    order = first.argsort()
    others = np.setdiff1d(np.arange(data.clients), data.participants[first])
    return replace(data, absent_clients=tuple(others.tolist())), alike[order]


def _first(pass_: Pass | Sweep, schedule: Schedule) -> Schedule:
    """The first step of a pass, or the first sample of a sweep."""
    if isinstance(pass_, Pass):
        return schedule.begin(1, pass_.refreshes)
    index, weight = schedule.index[:, :1, :1], schedule.weight[:, :1, :1]
    return Schedule(index, weight, schedule.steps.clip(max=1))


class _Laps:
    """What had been counted before and after each function of a pass, one after another."""

    def __init__(self, operations: OperationCounter) -> None:
        self._operations, self.totals, self.calls = operations, list[int](), list[int]()
        self._there = list[Tensor]()
        self._memory = 0

    def watched(self, pass_: Pass | Sweep) -> Pass | Sweep:
        """The pass, counted."""
        end = self._noted(self._weighed(pass_.end))
        if isinstance(pass_, Sweep):
            return replace(pass_, look=self._noted(pass_.look), end=end)
        refreshes = [replace(r, adapt=self._noted(r.adapt)) for r in pass_.refreshes]
        return replace(
            pass_,
            begin=self._noted(self._copied(pass_.begin)),
            update=self._noted(pass_.update),
            refreshes=tuple(refreshes),
            end=end,
        )

    def _copied(self, begin: Begin) -> Begin:
        """Its work tree copied, so that it and what is compared with it are two in the first step
        too.
        """

        @wraps(begin)
        def call(server: Tree, client: Tree) -> Tree:
            work = trees.apply(Tensor.clone, begin(server, client))
            kept = {key: tree for key, tree in work.items() if key != "optimizer"}
            self._there = trees.leaves(server) + trees.leaves(kept)
            self._operations.read_addresses.clear()
            return work

        return call

    def _weighed(self, end: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(end)
        def call(*given: Any) -> Any:
            read = [
                leaf
                for leaf in self._there
                if storage_address(leaf) in self._operations.read_addresses
            ]
            self._memory = sum(leaf.numel() * leaf.element_size() for leaf in read)
            return end(*given)

        return call

    def _noted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*given: Any) -> Any:
            self._note()
            result = function(*given)
            self._note()
            return result

        return call

    def _note(self) -> None:
        self.totals.append(self._operations.total)
        self.calls.append(self._operations.calls)

    def counts(self, pass_: Pass | Sweep) -> Counts:
        """What they come to."""
        first, begun, *steps, last, after = self.totals
        if isinstance(pass_, Sweep):
            return Counts(begun - first, after - last)
        # From the end of one function to that of the next.
        step, *refreshes = np.diff([begun, *steps[1::2]]).tolist() or [0]
        once, calls = begun - first + after - last, self.calls[-2] - self.calls[1]
        return Counts(step, once, calls, tuple(refreshes), self._memory)


def _shortened(method: Method) -> Method:
    """The method with one step in each pass that states its steps, and one refresh."""

    def pass_of(pass_: Pass | Sweep) -> Pass | Sweep:
        if isinstance(pass_, Sweep):
            return pass_
        sampling, stated = pass_.sampling, pass_.sampling.steps
        if stated is not None:
            sampling = replace(sampling, steps=lambda round_: min(1, stated(round_)))
        refreshes = tuple(
            replace(refresh, interval=ONCE, first_step=1) for refresh in pass_.refreshes
        )
        return replace(pass_, sampling=sampling, refreshes=refreshes)

    def phase_of(phase: Phase) -> Phase:
        return replace(phase, passes=tuple(map(pass_of, phase.passes)))

    passes = tuple(map(pass_of, method.passes))
    return replace(
        method, passes=passes, earlier_phases=tuple(map(phase_of, method.earlier_phases))
    )
