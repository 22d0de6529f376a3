"""Which backend trains the runs of a job fastest: known, or tried by a few real steps of each.

Backends agree to rounding, so that nothing here decides more than last bits; which backend a run
had is in its ``run.json``. A trial takes at most a small share of the work that lies ahead. Where
not even that would tell anything, there is none. What a trial found is kept (`fl.train.learnt`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl import trees
from fl.data.batches import Schedule
from fl.method import COUNTS, Averaging, Method, Pass, Refresh, Sweep
from fl.simulation import compiled, engine
from fl.simulation.modal import state_of
from fl.simulation.simulate import Simulation
from fl.simulation.state import Plan, State
from fl.train import programs
from fl.train.learnt import Learnt, Measured

logger = logging.getLogger(__name__)

SHARE = 0.03
"""Of the work ahead, what a trial may take at most."""

LEAST = 400
"""Steps ahead from which a trial is begun: what it takes at least is worth about ten of them."""

STEPS, TURNS = 3, 3
"""Steps in a try of a backend, and how often each has its turn at most: so a moment in which the
machine is busy does not decide.
"""

FEW = 2
"""Clients by which `loop` is timed, which takes them one after another."""

PAYS = 600.0
"""Seconds of work from which compiling, which takes tens of seconds, is worth a try."""


@dataclass(frozen=True)
class Candidates:
    """The runs that would be trained together, as a trial sees them: their first round, with those
    alone who take part in it. Where clients differ in modality: that with most participants.
    """

    methods: list[Method]
    states: list[State]
    plans: list[Plan]
    rounds: int

    @classmethod
    def of(cls, simulations: Sequence[Simulation], states: Sequence[State]) -> Candidates:
        """The runs, before their first round; nothing of them is changed."""
        methods, plans = [one.method for one in simulations], [one.plan(1) for one in simulations]
        states = list(states)
        if methods[0].modals:
            sizes = [0 if own is None else len(own.clients) for own in plans[0].modals]
            most = sizes.index(max(sizes))
            found = [
                (method.modals[most], state, own)
                for method, state, plan in zip(methods, states, plans, strict=True)
                if (own := plan.modals[most]) is not None
            ]
            states = [state_of(modal, state) for modal, state, _ in found]
            methods, plans = [modal.method for modal, *_ in found], [own for *_, own in found]
        chosen = [_alone(s, p) for s, p in zip(states, plans, strict=True)]
        return cls(
            methods=[_bare(method) for method in methods],
            states=[state for state, _ in chosen],
            plans=[plan for _, plan in chosen],
            rounds=simulations[0].training.rounds,
        )

    @property
    def participants(self) -> int:
        """Of a round, over all runs."""
        return sum(len(plan.clients) for plan in self.plans)

    @property
    def batches(self) -> list[list[int]]:
        """Of each pass that trains: samples of a batch, and the steps that a try takes of it."""
        found = [s for s in self.plans[0].schedules if s is not None]
        return [[s.index.shape[2], min(STEPS, int(s.steps.max(initial=0)))] for s in found]

    @property
    def shapes(self) -> dict[str, Any]:
        """What the speed of a step depends on, beside code and machine."""
        plan, counts = self.plans[0], self.states[0].clients[COUNTS]
        return {
            "runs": len(self.plans),
            "clients": self.participants,
            "batches": self.batches,
            "sample": {k: list(v) for k, v in plan.arrays.shapes.items()} or [*plan.arrays.shape],
            "classes": counts.shape[-1],
        }

    @property
    def steps(self) -> int:
        """Steps ahead: in each round those of the participant who takes most."""
        return self.rounds * _steps(self.plans[0])

    @property
    def compilable(self) -> bool:
        """Whether steps are all that a pass does, and there is a compiler."""
        simple = not any(_refreshes(part) for part in self.methods[0].passes)
        return simple and compiled.available(self.plans[0].arrays.device)

    def few(self) -> Candidates:
        """Some of the first run's participants, those with most steps."""
        state, plan = self.states[0], self.plans[0]
        taken = np.zeros(len(plan.clients), np.int64)
        for schedule in plan.schedules:
            taken += 0 if schedule is None else schedule.steps
        rows = np.argsort(-taken, kind="stable")[:FEW]
        state, plan = _alone(state, plan.take(rows.tolist()))
        return Candidates(self.methods[:1], [state], [plan], self.rounds)

    def uneven(self) -> Candidates:
        """The same with a client that lacks a step, if that will occur in training."""
        schedules = [s for plan in self.plans for s in plan.schedules if s is not None]
        if all(
            (s.steps == s.steps[0]).all() and not s.steps[0] % compiled.CHUNK for s in schedules
        ):
            return self
        return replace(self, plans=[_lacking(plan) for plan in self.plans])

    def seconds(self, backend: str, steps: int, tries: int = 1) -> float:
        """Seconds that a step of them all takes, see `seconds_a_step`."""
        return seconds_a_step(self.methods, self.states, self.plans, backend, steps, tries)


@dataclass(frozen=True)
class Choice:
    """A backend, and why it was chosen.

    Attributes:
        why: In words, where it was not tried.
        seconds: Of a step of all participants, by backend, where it was.
    """

    backend: str
    why: str
    seconds: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        timed = ", ".join(f"{name} {1e3 * t:.2f} ms" for name, t in self.seconds.items())
        return f"{self.backend} ({self.why or f'a step of all participants: {timed}'})"


def measure(runs: Candidates) -> Measured:
    """The loop and the stack, as long as it takes at most `SHARE` of the work ahead.

    Returns:
        Nothing, or only the stack, where that is too little to tell.
    """
    ahead = runs.steps
    if ahead < LEAST or runs.participants < 2:
        return Measured()
    few = runs.few()
    of_all = runs.participants / max(1, len(few.plans[0].clients))
    turns: dict[str, Callable[[], float]] = {
        "stacked": lambda: runs.seconds("stacked", STEPS),
        "loop": lambda: of_all * few.seconds("loop", STEPS),
    }
    for name in turns:
        few.seconds(name, 1)  # What the first step ever needs, the run needs too.
    found: dict[str, float] = {}
    took = dict.fromkeys(turns, 0.0)
    begun = time.perf_counter()
    for _ in range(TURNS):
        for name, turn in turns.items():
            now = time.perf_counter()
            most = SHARE * ahead * min(found.values(), default=np.inf)
            if now - begun + took[name] > most:
                return Measured(found)
            found[name] = min(turn(), found.get(name, np.inf))
            took[name] = time.perf_counter() - now
    return Measured(found)


def choose(
    runs: Candidates,
    learnt: Learnt,
    program: str | None = None,
    served: float = 1.0,
    waiting: Callable[[], None] = lambda: None,
) -> Choice:
    """The backend that finishes the runs soonest.

    Args:
        program: The name of what would be compiled, see `fl.train.programs.once`.
        served: How many times this job's work that program would serve.
        waiting: Called while it waits; raises if the process was asked to leave.
    """
    known = learnt.read()
    now = known or measure(runs)
    if now is not known and len(now.seconds) > 1:
        learnt.write(now)
    steps = served * runs.steps
    if _worth_compiling(runs, now, steps):
        now = _compiled(runs, now, learnt, program, waiting)
    elif now.seconds and now.best(steps) == "compiled":
        now = _ready(runs, now, program, waiting)
    if len(now.seconds) < 2:
        usual = learnt.usual()
        why = "as for other methods here" if usual else "too little work to try others"
        return Choice(usual or ("stacked" if runs.participants > 1 else "loop"), why)
    if known and {*now.seconds} <= {*known.seconds}:
        return Choice(now.best(steps), "known from an earlier job")
    return Choice(now.best(steps), "", now.seconds)


def _worth_compiling(runs: Candidates, known: Measured, steps: float) -> bool:
    if len(known.seconds) != 2 or known.refused:
        return False
    return min(known.seconds.values()) * steps > PAYS and runs.compilable


def _compiled(
    runs: Candidates,
    known: Measured,
    learnt: Learnt,
    program: str | None,
    waiting: Callable[[], None],
) -> Measured:
    """What is known, with the speed of the compiled stack, as measured here or meanwhile."""
    with programs.once(program, waiting):
        meanwhile = learnt.read()
        if meanwhile and (meanwhile.refused or "compiled" in meanwhile.seconds):
            return meanwhile
        found = _with_compiled(runs, known, waiting)
        learnt.write(found)
        return found


def _ready(
    runs: Candidates, known: Measured, program: str | None, waiting: Callable[[], None]
) -> Measured:
    """What is known, with the program compiled; without it, if that is not possible here."""
    if not runs.compilable:
        return known.uncompiled()
    with programs.once(program, waiting) as first:
        return _with_compiled(runs, known.uncompiled(), waiting) if first else known


def _with_compiled(runs: Candidates, known: Measured, waiting: Callable[[], None]) -> Measured:
    try:
        spent, step = _compile(runs)
    except Exception as error:  # A compiler that does not work, or code it cannot take.
        waiting()  # Ctrl-C ends a compiler too.
        reason = f"{type(error).__name__}: {str(error).strip().split(chr(10))[0]}"
        logger.warning("not compiled (%s)", reason)
        # A full disk or memory is no property of the code, and the next job may have more luck.
        return replace(known, refused="" if isinstance(error, OSError | MemoryError) else reason)
    return Measured({**known.seconds, "compiled": step}, spent)


def _compile(runs: Candidates) -> tuple[float, float]:
    """The seconds that compiling took, and those of a step afterwards."""
    begun = time.perf_counter()
    runs.seconds("compiled", compiled.CHUNK)
    # The program for a chunk in which some client has no step left is another one.
    runs.uneven().seconds("compiled", compiled.CHUNK)
    spent = time.perf_counter() - begun
    step = runs.seconds("compiled", 3 * compiled.CHUNK, tries=2)
    return max(0.0, spent - 2 * compiled.CHUNK * step), step


def _alone(state: State, plan: Plan) -> tuple[State, Plan]:
    """A state of the participants of a plan alone, so that nobody else's is copied."""
    clients = trees.take(state.clients, plan.clients)
    rows = torch.arange(len(plan.clients))
    return State(state.server, clients), replace(plan, clients=rows, before=(), everyone=None)


def _lacking(plan: Plan) -> Plan:
    """The plan of a first chunk, whose first participant has a step less."""

    def short(schedule: Schedule | None) -> Schedule | None:
        if schedule is None:
            return None
        steps = np.minimum(schedule.steps, compiled.CHUNK)
        steps[0] = max(0, steps[0] - 1)
        return replace(schedule, steps=steps)

    return replace(plan, schedules=tuple(map(short, plan.schedules)))


def _refreshes(part: Pass | Sweep) -> tuple[Refresh, ...]:
    return part.refreshes if isinstance(part, Pass) else ()


def _bare(method: Method) -> Method:
    """A method without what takes as long on every backend, and longer than steps: what a pass
    refreshes, exchanges before, and what the server makes of uploads.
    """
    passes = tuple(replace(p, refreshes=()) if isinstance(p, Pass) else p for p in method.passes)
    # Of means, a group's uploads need not wait in memory for those of the next.
    means = isinstance(method.aggregate, Averaging)
    aggregate = method.aggregate if means else _unchanged
    return replace(method, passes=passes, before=(), aggregate=aggregate)


def _unchanged(server: Any, clients: Any, uploads: Any, n: Tensor) -> tuple[Any, Any]:
    return server, clients


def _steps(plan: Plan) -> int:
    """How many steps the longest participant takes in the passes of a round."""
    return sum(int(s.steps.max(initial=0)) for s in plan.schedules if s)


def seconds_a_step(
    methods: Sequence[Method],
    states: Sequence[State],
    plans: Sequence[Plan],
    backend: str,
    steps: int,
    tries: int = 3,
) -> float:
    """Seconds that a step of all participants takes: the shortest of some tries.

    The first try also warms up, and compiles.
    """
    refreshes = [_refreshes(part) for part in methods[0].passes]
    trials = [
        replace(
            plan,
            schedules=tuple(
                s and s.begin(steps, r) for s, r in zip(plan.schedules, refreshes, strict=True)
            ),
        )
        for plan in plans
    ]
    times = []
    for _ in range(tries):
        begun = time.perf_counter()
        done = engine.run_rounds(methods, states, trials, backend)
        sum(losses.sum().item() for _, losses in done)
        times.append(time.perf_counter() - begun)
    return min(times) / max(1, _steps(trials[0]))
