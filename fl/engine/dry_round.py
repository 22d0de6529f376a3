"""A round with one step of each pass, computed by the engine as every other round.

Before anything is trained, it shows whether a method can train its model (`fl.plan.rehearsal`);
afterwards, what a round costs (`fl.runner.costs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fl.api.method import Method, Pass, Phase, Sweep
from fl.engine import engine
from fl.engine.batches import Schedule
from fl.engine.state import PhaseResults, PhaseSchedule, RoundSchedule, State

NEVER_AGAIN = 2**62
"""Interval of a refresh that takes place only after the first step."""


def with_single_steps(method: Method) -> Method:
    """Return the method with one step in each pass that states its steps, and one refresh."""
    return replace(
        method,
        passes=_shorten(method.passes),
        earlier_phases=tuple(
            replace(phase, passes=_shorten(phase.passes)) for phase in method.earlier_phases
        ),
    )


def _shorten(passes: Sequence[Pass | Sweep]) -> tuple[Pass | Sweep, ...]:
    return tuple(pass_ if isinstance(pass_, Sweep) else _shorten_pass(pass_) for pass_ in passes)


def _shorten_pass(pass_: Pass) -> Pass:
    sampling, stated = pass_.sampling, pass_.sampling.steps
    if stated is not None:
        sampling = replace(sampling, steps=lambda round_: min(1, stated(round_)))
    refreshes = tuple(
        replace(refresh, interval=NEVER_AGAIN, first_step=1) for refresh in pass_.refreshes
    )
    return replace(pass_, sampling=sampling, refreshes=refreshes)


def run_first_steps(
    phase: Phase,
    state: State,
    phase_schedule: PhaseSchedule,
    schedule: RoundSchedule,
    backend: str,
    swept_samples: int = 1,
) -> PhaseResults:
    """Run a phase of `with_single_steps` in which each client takes one step of each pass.

    Args:
        phase: The phase.
        state: The state of the run.
        phase_schedule: The clients, with the batches of all their steps.
        schedule: The schedule of the round.
        backend: Name of the backend.
        swept_samples: Number of samples that a sweep looks at.

    Returns:
        The results of the clients.
    """
    schedules = tuple(
        batches and _begin(pass_, batches, swept_samples)
        for pass_, batches in zip(phase.passes, phase_schedule.schedules, strict=True)
    )
    short = replace(phase_schedule, schedules=schedules)
    [results] = engine.run_phase(phase, [state], [short], schedule, backend)
    return results


def _begin(pass_: Pass | Sweep, schedule: Schedule, swept_samples: int) -> Schedule:
    """Return the first step of a pass, or the first samples of a sweep."""
    if isinstance(pass_, Pass):
        return schedule.begin(1, pass_.refreshes)
    index, weight = (array[:, :1, :swept_samples] for array in (schedule.index, schedule.weight))
    return Schedule(index, weight, schedule.steps.clip(max=1))
