"""The runs of a job as a trial of backends sees them, and what a step of theirs takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import COUNTS, Averaging, Method, Pass, Refresh, Sweep
from fl.engine import compiled, engine
from fl.engine.batches import Schedule
from fl.engine.modal import state_of
from fl.engine.simulate import Simulation
from fl.engine.state import Plan, State
from fl.pytorch.operations import Operations

STEPS = 3
"""Steps in a try of a backend."""

FEW = 2
"""Clients by which `loop` is timed, which takes them one after another."""


@dataclass(frozen=True)
class Candidates:
    """The runs that would be trained together, as a trial sees them: their first round, with those
    alone who take part in it. Where clients differ in modality: that with most participants.

    Attributes:
        folds: Of their network, see `fl.api.network.Network`.
    """

    methods: list[Method]
    states: list[State]
    plans: list[Plan]
    rounds: int
    folds: bool = False

    @classmethod
    def of(cls, simulations: Sequence[Simulation], states: Sequence[State]) -> Candidates:
        """The runs, before their first round; nothing of them is changed."""
        methods, plans = [one.method for one in simulations], [one.plan(1) for one in simulations]
        states, network = list(states), simulations[0].network
        if methods[0].modals:
            sizes = [0 if own is None else len(own.clients) for own in plans[0].modals]
            most = sizes.index(max(sizes))
            network = simulations[0].modals[most].network
            found = [
                (method.modals[most], state, own)
                for method, state, plan in zip(methods, states, plans, strict=True)
                if (own := plan.modals[most]) is not None
            ]
            states = [state_of(modal, state) for modal, state, _ in found]
            methods, plans = [modal.method for modal, *_ in found], [own for *_, own in found]
        # Of several processes this one tries its own share.
        plans = [plan.group.share(plan) if plan.group else plan for plan in plans]
        chosen = [_alone(s, p) for s, p in zip(states, plans, strict=True)]
        return cls(
            methods=[_bare(method) for method in methods],
            states=[state for state, _ in chosen],
            plans=[plan for _, plan in chosen],
            rounds=simulations[0].training.rounds,
            folds=network.folds,
        )

    @property
    def participants(self) -> int:
        """Of a round, over all runs."""
        return sum(len(plan.clients) for plan in self.plans)

    @property
    def work(self) -> int:
        """Steps of all participants of a round, over all runs."""
        return sum(int(_taken(plan).sum()) for plan in self.plans)

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
            "rows": compiled.width(self.participants, plan.usual),
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
        """Whether steps are all that a pass does, there is a compiler, and a program may be faster
        than the stack: one of convolutions on a CPU is not (docs/benchmarks.md).
        """
        device = self.plans[0].arrays.device
        if any(map(_refreshes, self.methods[0].passes)) or (self.folds and device.type == "cpu"):
            return False
        return compiled.available(device)

    def few(self) -> Candidates:
        """Some of the first run's participants, those with most steps."""
        state, plan = self.states[0], self.plans[0]
        rows = np.argsort(-_taken(plan), kind="stable")[:FEW]
        state, plan = _alone(state, plan.take(rows.tolist()))
        return Candidates(self.methods[:1], [state], [plan], self.rounds)

    @property
    def calls(self) -> int:
        """Operations on tensors that the stack computes for one more step."""
        few = self.few()
        if min((int(s.steps.max(initial=0)) for s in few.plans[0].schedules if s), default=0) < 2:
            return 0
        made: list[int] = []
        for steps in (1, 2):
            with Operations() as counter:
                few.seconds("stacked", steps)
            made.append(counter.calls)
        return made[1] - made[0]

    def seconds(self, backend: str, steps: int, tries: int = 1) -> float:
        """Seconds that a step of them all takes, see `seconds_a_step`."""
        return seconds_a_step(self.methods, self.states, self.plans, backend, steps, tries)


def _alone(state: State, plan: Plan) -> tuple[State, Plan]:
    """A state of the participants of a plan alone, so that nobody else's is copied."""
    clients = trees.take(state.clients, plan.clients)
    rows = torch.arange(len(plan.clients))
    return State(state.server, clients), replace(plan, clients=rows, before=(), everyone=None)


def _refreshes(part: Pass | Sweep) -> tuple[Refresh, ...]:
    return part.refreshes if isinstance(part, Pass) else ()


def _bare(method: Method) -> Method:
    """A method without what takes as long on every backend, and longer than steps: what a pass
    refreshes, phases before, and what the server makes of uploads.
    """
    passes = tuple(replace(p, refreshes=()) if isinstance(p, Pass) else p for p in method.passes)
    # Of means, a group's uploads need not wait in memory for those of the next.
    means = isinstance(method.aggregate, Averaging)
    aggregate = method.aggregate if means else _unchanged
    return replace(method, passes=passes, before=(), aggregate=aggregate)


def _unchanged(server: Any, clients: Any, uploads: Any, n: Tensor) -> tuple[Any, Any]:
    return server, clients


def _taken(plan: Plan) -> np.ndarray:
    """How many steps each participant takes in the passes of a round, [m]."""
    found = np.zeros(len(plan.clients), np.int64)
    for schedule in plan.schedules:
        found += 0 if schedule is None else schedule.steps
    return found


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

    Args:
        steps: Of the participant with most; others take fewer in proportion.
    """
    refreshes = [_refreshes(part) for part in methods[0].passes]
    trials = [
        replace(
            plan,
            schedules=tuple(
                s and _begun(s, steps, r) for s, r in zip(plan.schedules, refreshes, strict=True)
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


def _begun(schedule: Schedule, steps: int, refreshes: Sequence[Refresh]) -> Schedule:
    """So many first steps of who takes most, and as large a share of everyone else's."""
    begun, longest = schedule.begin(steps, refreshes), int(schedule.steps.max(initial=0))
    if longest <= steps:
        return begun
    return replace(begun, steps=-(-schedule.steps * steps // longest))
