"""Seconds of local steps, as backends take them."""

from __future__ import annotations

import time
from dataclasses import replace

from torch import Tensor

from fl.api.method import Pass
from fl.api.trees import Tree
from fl.engine import engine
from fl.engine.batches import Schedule
from fl.engine.simulate import Simulation


def seconds_a_step(
    simulation: Simulation, backend: str, steps: int, tries: int = 3, seeds: int = 1
) -> float:
    """Seconds that a step of all participants of round 1 takes: the shortest of some tries.

    Args:
        steps: Of the participant with most; others take fewer in proportion.
        seeds: How many runs are trained at once.
    """
    runs = [replace(simulation, seed=seed) for seed in range(seeds)]
    methods = [replace(run.method, before=(), aggregate=_unchanged) for run in runs]
    states, plans = [run.begin() for run in runs], [run.plan(1) for run in runs]
    refreshes = [p.refreshes if isinstance(p, Pass) else () for p in simulation.method.passes]
    short = [
        replace(
            plan,
            before=(),
            schedules=tuple(
                schedule and begun(schedule, steps, refreshed)
                for schedule, refreshed in zip(plan.schedules, refreshes, strict=True)
            ),
        )
        for plan in plans
    ]
    longest = sum(int(schedule.steps.max()) for schedule in short[0].schedules if schedule)
    times = []
    for _ in range(tries):
        before = time.perf_counter()
        done = engine.run_rounds(methods, states, short, backend)
        sum(losses.sum().item() for _, losses in done)
        times.append(time.perf_counter() - before)
    return min(times) / max(1, longest)


def begun(schedule: Schedule, steps: int, refreshes: tuple) -> Schedule:
    """So many first steps of who takes most, and as large a share of everyone else's."""
    first, longest = schedule.begin(steps, refreshes), int(schedule.steps.max(initial=0))
    if longest <= steps:
        return first
    return replace(first, steps=-(-schedule.steps * steps // longest))


def _unchanged(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
    return server, clients
