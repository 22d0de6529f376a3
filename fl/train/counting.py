"""A round of one client with one step of each pass: the bytes and operations in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from fl.api import trees
from fl.api.method import PAYLOAD, Method, Pass, Phase, Sweep
from fl.api.trees import Tree
from fl.engine.backends import BACKENDS, Cohort
from fl.engine.batches import Schedule
from fl.engine.simulation import Simulation
from fl.engine.state import State
from fl.engine.sweeps import sweep
from fl.pytorch.operations import Operations

ONCE = 2**62
"""A refresh that comes after the first step and, in any round, never again."""


def steps_stated(pass_: Pass | Sweep, round_: int) -> int:
    """The number of steps that a pass states for a round; 1 where it follows from the samples."""
    sampling = pass_.sampling if isinstance(pass_, Pass) else pass_
    if not sampling.due(round_):
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
    """

    step: int
    once: int
    calls: int = 0
    refreshes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Work:
    """A pass and its operations.

    Attributes:
        steps: Of every client, [K], to be multiplied by the steps that the pass itself states; for
            a sweep the number of samples.
    """

    pass_: Pass | Sweep
    steps: np.ndarray
    counts: Counts

    def flops(self, round_: int) -> float:
        """The mean over clients."""
        stated, counts = steps_stated(self.pass_, round_), self.counts
        steps = self.steps * stated
        total = float(counts.step * steps.sum() + counts.once * len(steps) * (stated > 0))
        if isinstance(self.pass_, Pass):
            sizes = list(zip(*np.unique(steps, return_counts=True), strict=True))
            for once, refresh in zip(counts.refreshes, self.pass_.refreshes, strict=True):
                total += once * sum(refresh.times(int(s)) * int(n) for s, n in sizes)
        return total / len(steps)


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


def short_round(simulation: Simulation, state: State, round_: int) -> ShortRound:
    """A round of the client with most samples, with one step of each pass, as `fl.engine.engine`
    goes through it.
    """
    everybody = replace(simulation.training, participation=1.0)
    short = replace(simulation, method=_shortened(simulation.method), training=everybody)
    plan = short.plan(round_)
    row = plan.n.argmax()[None].cpu()
    ids, n = plan.clients[row], plan.n[row]
    clients = state.some(ids, plan.arrays.device)
    server, done, fresh = state.server, ShortRound(), True
    phases = zip(short.method.phases, simulation.method.phases, plan.rosters, strict=True)
    for number, (phase, whole, roster) in enumerate(phases):
        if roster is None or not any(roster.schedules):
            continue
        sent = dict(phase.send(server) if phase.send else server)
        done.receive(sent)
        if phase.payload:
            payload = trees.vmap(phase.payload, (None, 0))(server, clients)
            clients = {**clients, PAYLOAD: payload}
        if phase.payload or fresh:
            done.down += trees.nbytes(clients.get(PAYLOAD, {}))
        upload: Tree = {}
        passes = zip(phase.passes, whole.passes, roster.schedules, strict=True)
        for pass_, stated, schedule in passes:
            if schedule is None:
                continue
            its = schedule.take(row.numpy())
            cohort = Cohort(clients, ids, sent, False, its, plan.arrays, plan.round, plan.lr)
            if isinstance(pass_, Sweep):
                clients, upload, counts = _swept(pass_, cohort, upload)
                steps = schedule.weight.sum((1, 2))
            else:
                clients, upload, counts = _trained(pass_, cohort)
                steps = schedule.steps
            done.work.append(Work(stated, steps, counts))
        done.up += trees.nbytes(upload)
        if phase.payload:
            clients = {key: leaf for key, leaf in clients.items() if key != PAYLOAD}
        if number + 1 < len(plan.rosters):  # What comes of the last is not asked.
            server, after = phase.aggregate(server, clients, upload, n)
            old, new = (trees.leaves(tree.get(PAYLOAD, {})) for tree in (clients, after))
            fresh, clients = list(map(id, old)) != list(map(id, new)), after
    return done


def _shortened(method: Method) -> Method:
    """The method with one step in each pass that states its steps, and one refresh."""

    def pass_of(pass_: Pass | Sweep) -> Pass | Sweep:
        if isinstance(pass_, Sweep):
            return pass_
        sampling, stated = pass_.sampling, pass_.sampling.steps
        if stated is not None:
            sampling = replace(sampling, steps=lambda round_: min(1, stated(round_)))
        refreshes = tuple(replace(refresh, every=ONCE, first=1) for refresh in pass_.refreshes)
        return replace(pass_, sampling=sampling, refreshes=refreshes)

    def phase_of(phase: Phase) -> Phase:
        return replace(phase, passes=tuple(map(pass_of, phase.passes)))

    passes = tuple(map(pass_of, method.passes))
    return replace(method, passes=passes, before=tuple(map(phase_of, method.before)))


Result = tuple[Tree, Tree, Counts]
"""What a client keeps and what it sends after a short pass, and the operations."""


def _swept(pass_: Sweep, cohort: Cohort, sent: Tree) -> Result:
    """After a look at one sample."""
    schedule = cohort.schedule
    index, weight = schedule.index[:, :1, :1], schedule.weight[:, :1, :1]
    short = replace(cohort, schedule=Schedule(index, weight, schedule.steps.clip(max=1)))
    once, whole = Operations(), Operations()
    with whole:
        kept, upload = sweep(replace(pass_, end=_counted(pass_.end, once)), short, sent, "loop")
    return kept, upload, Counts(whole.total - once.total, once.total)


def _trained(pass_: Pass, cohort: Cohort) -> Result:
    """After one step."""
    refreshing = [_stepped(pass_, cohort, (number,))[2] for number in range(len(pass_.refreshes))]
    kept, upload, alone = _stepped(pass_, cohort, ())
    refreshes = tuple(counts.step - alone.step for counts in refreshing)
    return kept, upload, replace(alone, refreshes=refreshes)


def _stepped(pass_: Pass, cohort: Cohort, refreshes: tuple[int, ...]) -> Result:
    """After one step with these of the refreshes."""
    once, whole = Operations(), Operations()
    short = replace(
        pass_,
        begin=_counted(pass_.begin, once),
        end=_counted(pass_.end, once),
        refreshes=tuple(pass_.refreshes[number] for number in refreshes),
    )
    extra = tuple(cohort.schedule.extra[number] for number in refreshes)
    schedule = replace(cohort.schedule, extra=extra).begin(1, short.refreshes)
    with whole:
        kept, upload, _ = BACKENDS["loop"](short, replace(cohort, schedule=schedule))
    step, calls = whole.total - once.total, whole.calls - once.calls
    return kept, upload, Counts(step, once.total, calls)


def _counted(function: Callable[..., Any], counter: Operations) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        with counter:
            return function(*given)

    return call
