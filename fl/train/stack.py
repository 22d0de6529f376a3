"""Where runs that are trained together stand, and how that outlives the process.

The runs of a *stack* differ in their seed only. They have one checkpoint, in the workspace of the
first of them that is not finished: resumed, they are the same stack again, and so get the same
bits. A run that is finished already, as the process was killed between two of them, is trained
along once more for the others' sake and dropped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from fl import trees
from fl.errors import FedloomError
from fl.files import disk_errors
from fl.simulation import modal
from fl.simulation.engine import State
from fl.simulation.evaluate import as_rows
from fl.simulation.simulate import Round, Simulation
from fl.store import checkpoint
from fl.store.checkpoint import Checkpoint
from fl.trees import Tree

logger = logging.getLogger(__name__)


@dataclass
class Stack:
    """Runs by id, their states after ``round``, and what has been written down of them so far.

    members: the runs as they began; those that diverged are no longer in ``states``. trial: what
    was measured to choose the backend. seconds: of work for each member, in equal shares of the
    time that passed while it was one of several; since: when they were shared out last. traces: of
    each run, by round, what its method keeps of it.
    """

    simulations: dict[str, Simulation]
    members: list[str]
    states: dict[str, State]
    rows: dict[str, pd.DataFrame]
    backend: str
    trial: dict[str, float] = field(default_factory=dict)
    round: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)
    traces: dict[str, dict[int, dict[str, Tensor]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seconds = {run: self.seconds.get(run, 0.0) for run in self.members}
        self.traces = {run: self.traces.get(run, {}) for run in self.members}

    @classmethod
    def begin(
        cls, simulations: Mapping[str, Simulation], weights: Mapping[str, Tree | None], backend: str
    ) -> Stack:
        """From the start, or from the stored model of another run."""
        states = {run: sim.begin(weights[run]) for run, sim in simulations.items()}
        rows = {}
        for run, sim in simulations.items():
            given = weights[run]
            rows[run] = as_rows([]) if given is None else sim.before(given)
        return cls(dict(simulations), list(simulations), states, rows, backend)

    @classmethod
    def resume(cls, saved: Checkpoint, simulations: Mapping[str, Simulation]) -> Stack:
        """From a checkpoint; members that nobody asks for any more are left out."""
        extra = dict(saved.extra)
        everyone, spent = extra.pop("members"), extra.pop("seconds")
        if not isinstance(spent, dict):  # A checkpoint of an older version, which had their sum.
            spent = dict.fromkeys(everyone, spent / len(everyone))
        members = [run for run in everyone if run in simulations]
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
        traces = {run: _apart(saved.state[run].get("traces", {})) for run in states}
        return cls(
            *(chosen, members, states, rows),
            round=saved.round,
            seconds=spent,
            traces=traces,
            **extra,
        )

    def choose(self) -> None:
        """Settle ``auto`` by a few real steps of all runs."""
        sims = list(self.simulations.values())
        self.backend, self.trial = modal.choose(
            [sim.method for sim in sims],
            list(self.states.values()),
            [sim.plan(1) for sim in sims],
            sims[0].training.rounds,
        )
        timed = ", ".join(f"{name} {1e3 * t:.2f} ms" for name, t in self.trial.items())
        logger.info("backend %s (a step of all participants: %s)", self.backend, timed)

    def split(self) -> Iterator[Stack]:
        """A stack for each run, whose clock starts as it is asked for, to be trained before the
        next; the trial is written down with the first.
        """
        self._share()
        for place, run in enumerate(self.members):
            yield replace(
                self,
                simulations={run: self.simulations[run]},
                members=[run],
                states={run: self.states[run]},
                rows={run: self.rows[run]},
                trial=self.trial if place == 0 else {},
                traces={},
                since=time.monotonic(),
            )

    def add(self, finished: Mapping[str, Round]) -> None:
        """One more round."""
        self._share()
        for run, one in finished.items():
            self.round = one.number
            self.rows[run] = pd.concat([self.rows[run], one.rows], ignore_index=True)
            if one.traces:
                self.traces[run][one.number] = one.traces
        self.states = {run: one.state for run, one in finished.items() if not one.diverged}

    def _share(self) -> None:
        """Give what time has passed to the runs that were trained in it."""
        now = time.monotonic()
        for run in self.states:
            self.seconds[run] += (now - self.since) / len(self.states)
        self.since = now

    def kept(self, run: str) -> dict[str, Tensor] | None:
        """A run's traces as one tensor [rounds evaluated, ...] each, and those rounds as ``round``;
        None if there are none.
        """
        found = self.traces[run]
        if not found:
            return None
        names = next(iter(found.values()))
        if "round" in names:
            raise FedloomError("a trace is named 'round'; allowed: any other name")
        stacked = {name: torch.stack([one[name] for one in found.values()]) for name in names}
        return {"round": torch.tensor(list(found)), **stacked}

    def save(self, folder: Path) -> None:
        """A checkpoint of this round, in the folder of one of the runs."""
        self._share()
        state = {
            run: {"server": one.server, "clients": one.clients, "traces": self.kept(run) or {}}
            for run, one in self.states.items()
        }
        rows = pd.concat([self.rows[run].assign(run=run) for run in self.states])
        extra = {
            "members": self.members,
            "backend": self.backend,
            "trial": self.trial,
            "seconds": self.seconds,
        }
        with disk_errors(folder):
            checkpoint.save(folder, self.round, state, extra, rows.reset_index(drop=True))


def _apart(kept: Tree) -> dict[int, dict[str, Tensor]]:
    """Traces by round, as `Stack.kept` had put them together."""
    names = [name for name in kept if name != "round"]
    rounds = kept["round"].tolist() if kept else []
    return {number: {name: kept[name][i] for name in names} for i, number in enumerate(rounds)}


def _rows_of(rows: pd.DataFrame, run: str) -> pd.DataFrame:
    return rows[rows["run"] == run].drop(columns="run").reset_index(drop=True)
