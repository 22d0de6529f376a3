"""Which backend trains the runs of a job fastest: known, or tried by a few real steps of each.

Backends agree to rounding, so that nothing here decides more than last bits; which backend a run
had is in its ``run.json``. A trial takes at most a small share of the work that lies ahead. Where
not even that would tell anything, there is none. What a trial found is kept (`fl.train.learnt`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from fl.train import compiling
from fl.train.candidates import STEPS, Candidates
from fl.train.learnt import Learnt, Measured

SHARE = 0.03
"""Of the work ahead, what a trial may take at most."""

LEAST = 400
"""Steps ahead from which a trial is begun: what it takes at least is worth about ten of them."""

TURNS = 3
"""How often each backend has its turn: so a moment in which the machine is busy does not decide. A
job that cannot afford them all leaves the rest to later ones.
"""


NOTHING = Measured()
"""Before the first job."""


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


def measure(runs: Candidates, known: Measured = NOTHING) -> Measured:
    """The loop and the stack, as long as it takes at most `SHARE` of the work ahead.

    Args:
        known: By earlier jobs, which is where this one goes on.

    Returns:
        What was known where no turn of both can be afforded.
    """
    ahead = runs.steps
    if ahead < LEAST or runs.participants < 2:
        return known
    few = runs.few()
    of_all = runs.work / max(1, few.work)
    turns: dict[str, Callable[[], float]] = {
        "stacked": lambda: runs.seconds("stacked", STEPS),
        "loop": lambda: of_all * few.seconds("loop", STEPS),
    }
    found = {name: known.seconds[name] for name in turns if name in known.seconds}
    took = {name: STEPS * found.get(name, 0.0) for name in turns}
    for name in turns:
        few.seconds(name, 1)  # What the first step ever needs, the run needs too.
    begun = time.perf_counter()
    for turn in range(known.turns, TURNS):
        most = SHARE * ahead * min(found.values(), default=np.inf)
        if time.perf_counter() - begun + sum(took.values()) > most:
            return _with(known, found, turn)
        for name, seconds in turns.items():
            now = time.perf_counter()
            found[name] = min(seconds(), found.get(name, np.inf))
            took[name] = time.perf_counter() - now
    return _with(known, found, TURNS)


def _with(known: Measured, found: dict[str, float], turns: int) -> Measured:
    return replace(known, seconds={**known.seconds, **found}, turns=turns)


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
    known = learnt.read() or NOTHING
    now = known if known.turns >= TURNS else measure(runs, known)
    told = now == known
    if not told:
        learnt.write(now)
    steps = served * runs.steps
    now = compiling.foreseen(runs, now, learnt, steps)
    if compiling.worth(runs, now, steps):
        now = compiling.done(runs, now, learnt, program, waiting)
    elif now.seconds and now.best(steps) == "compiled":
        now = compiling.ready(runs, now, program, waiting)
    if len(now.seconds) < 2:
        usual = learnt.usual()
        why = "as for other methods here" if usual else "too little work to try others"
        return Choice(usual or ("stacked" if runs.participants > 1 else "loop"), why)
    if told and {*now.seconds} <= {*known.seconds}:
        return Choice(now.best(steps), "known from an earlier job")
    return Choice(now.best(steps), "", now.seconds)
