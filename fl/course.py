"""Where runs that are trained together stand, and how that outlives the process.

The runs of a *course* differ in their seed only. They have one checkpoint, in the workspace of the
first of them that is not finished: resumed, they are the same stack again, and so get the same
bits. A run that is finished already, as the process was killed between two of them, is trained
along once more for the others' sake and dropped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from fl import checkpoint, engine, trees
from fl.checkpoint import Checkpoint
from fl.engine import State
from fl.evaluate import as_rows
from fl.files import disk_errors
from fl.simulate import Round, Simulation
from fl.trees import Tree

logger = logging.getLogger(__name__)


@dataclass
class Course:
    """Runs by id, their states after ``round``, and what has been written down of them so far.

    members: the runs as they began; those that diverged are no longer in ``states``. trial: what
    was measured to choose the backend. seconds: of work before the last resume.
    """

    simulations: dict[str, Simulation]
    members: list[str]
    states: dict[str, State]
    rows: dict[str, pd.DataFrame]
    backend: str
    trial: dict[str, float] = field(default_factory=dict)
    round: int = 0
    seconds: float = 0.0
    since: float = field(default_factory=time.monotonic)

    @classmethod
    def begin(
        cls, simulations: Mapping[str, Simulation], weights: Mapping[str, Tree | None], backend: str
    ) -> Course:
        """From the start, or from the stored model of another run."""
        states = {run: sim.begin(weights[run]) for run, sim in simulations.items()}
        rows = {}
        for run, sim in simulations.items():
            given = weights[run]
            rows[run] = as_rows([]) if given is None else sim.before(given)
        return cls(dict(simulations), list(simulations), states, rows, backend)

    @classmethod
    def resume(cls, saved: Checkpoint, simulations: Mapping[str, Simulation]) -> Course:
        """From a checkpoint; members that nobody asks for any more are left out."""
        extra = dict(saved.extra)
        members = [run for run in extra.pop("members") if run in simulations]
        states = {}
        for run in [run for run in members if run in saved.state]:
            device = simulations[run].arrays.device
            server = trees.to(saved.state[run]["server"], device)
            states[run] = State(server, saved.state[run]["clients"])
        rows = {
            run: as_rows([]) if run not in states else _rows_of(saved.rows, run) for run in members
        }
        logger.info("resumed after round %d", saved.round)
        chosen = {run: simulations[run] for run in members}
        return cls(chosen, members, states, rows, round=saved.round, **extra)

    def choose(self) -> None:
        """Settle ``auto`` by a few real steps of all runs."""
        sims = list(self.simulations.values())
        self.backend, self.trial = engine.choose(
            [sim.method for sim in sims],
            list(self.states.values()),
            [sim.plan(1) for sim in sims],
            sims[0].training.rounds,
        )
        timed = ", ".join(f"{name} {1e3 * t:.2f} ms" for name, t in self.trial.items())
        logger.info("backend %s (a step of all participants: %s)", self.backend, timed)

    def split(self) -> list[Course]:
        """A course for each run; the trial is written down with the first."""
        return [
            replace(
                self,
                simulations={run: self.simulations[run]},
                members=[run],
                states={run: self.states[run]},
                rows={run: self.rows[run]},
                trial=self.trial if place == 0 else {},
            )
            for place, run in enumerate(self.members)
        ]

    def add(self, finished: Mapping[str, Round]) -> None:
        """One more round."""
        for run, one in finished.items():
            self.round = one.number
            self.rows[run] = pd.concat([self.rows[run], one.rows], ignore_index=True)
        self.states = {run: one.state for run, one in finished.items() if not one.diverged}

    def elapsed(self) -> float:
        """Seconds of work for each run, those before a resume included."""
        return (self.seconds + time.monotonic() - self.since) / len(self.members)

    def save(self, folder: Path) -> None:
        """A checkpoint of this round, in the folder of one of the runs."""
        state = {
            run: {"server": one.server, "clients": one.clients} for run, one in self.states.items()
        }
        rows = pd.concat([self.rows[run].assign(run=run) for run in self.states])
        extra = {
            "members": self.members,
            "backend": self.backend,
            "trial": self.trial,
            "seconds": self.seconds + time.monotonic() - self.since,
        }
        with disk_errors(folder):
            checkpoint.save(folder, self.round, state, extra, rows.reset_index(drop=True))


def _rows_of(rows: pd.DataFrame, run: str) -> pd.DataFrame:
    return rows[rows["run"] == run].drop(columns="run").reset_index(drop=True)
