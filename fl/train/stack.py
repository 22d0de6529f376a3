"""The state of runs that are trained together, and how it is saved and resumed.

The runs of a *stack* differ only in their seed. They have one checkpoint, in the workspace of the
first of them that is not finished. A resumed stack has the same members, so it gives the same bits.
If the process was killed between finishing two runs, the finished one is trained again with the
others, for their sake, and its result is dropped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from fl.api import trees
from fl.api.trees import Tree
from fl.base.errors import FedloomError
from fl.base.files import disk_errors
from fl.engine import holders
from fl.engine.evaluate import as_rows
from fl.engine.simulate import Round, Simulation
from fl.engine.state import State
from fl.store import checkpoint
from fl.store.checkpoint import Checkpoint

logger = logging.getLogger(__name__)


@dataclass
class Stack:
    """Runs by id, their states after ``round``, and their rows so far.

    Attributes:
        members: The runs that the stack began with; those that diverged are no longer in
            ``states``.
        seconds: Of work by member: equal shares of the time in which it was trained with others.
        since: When seconds were last shared out.
        traces: By run and round, what the run's method records.
    """

    simulations: dict[str, Simulation]
    members: list[str]
    states: dict[str, State]
    rows: dict[str, pd.DataFrame]
    backend: str
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
        """A stack before its first round, from fresh variables or from the stored model of another
        run.
        """
        states = {run: sim.begin(weights[run]) for run, sim in simulations.items()}
        rows = {}
        for run, sim in simulations.items():
            given = weights[run]
            rows[run] = as_rows([]) if given is None else sim.before(given)
        return cls(dict(simulations), list(simulations), states, rows, backend)

    @classmethod
    def resume(cls, saved: Checkpoint, simulations: Mapping[str, Simulation]) -> Stack:
        """A stack from its checkpoint; members that are no longer asked for are left out."""
        extra = dict(saved.extra)
        everyone, spent = extra.pop("members"), extra.pop("seconds")
        if not isinstance(spent, dict):  # A checkpoint of an older version, which had their sum.
            spent = dict.fromkeys(everyone, spent / len(everyone))
        members = [run for run in everyone if run in simulations]
        states = {}
        for run in [run for run in members if run in saved.state]:
            device = simulations[run].arrays.device
            server = trees.to(saved.state[run]["server"], device)
            sim = simulations[run]
            clients = holders.loaded(saved.state[run]["clients"], sim.method, sim.held.modality)
            states[run] = State(server, clients)
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

    def add(self, finished: Mapping[str, Round]) -> None:
        """Add a finished round."""
        self._share()
        for run, one in finished.items():
            self.round = one.number
            self.rows[run] = pd.concat([self.rows[run], one.rows], ignore_index=True)
            if one.traces:
                self.traces[run][one.number] = one.traces
        self.states = {run: one.state for run, one in finished.items() if not one.diverged}

    def _share(self) -> None:
        """Share the time that has passed between the runs that were trained in it."""
        now = time.monotonic()
        for run in self.states:
            self.seconds[run] += (now - self.since) / len(self.states)
        self.since = now

    def kept(self, run: str) -> dict[str, Tensor] | None:
        """A run's traces, by name a tensor [rounds evaluated, ...], and those rounds as ``round``.

        Returns:
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
        """Save a checkpoint of this round in the folder of one of the runs."""
        self._share()
        state = {
            run: {
                "server": one.server,
                "clients": holders.saved(one.clients, sim.method, sim.held.modality),
                "traces": self.kept(run) or {},
            }
            for run, one in self.states.items()
            for sim in [self.simulations[run]]
        }
        rows = pd.concat([self.rows[run].assign(run=run) for run in self.states])
        extra = {
            "members": self.members,
            "backend": self.backend,
            "seconds": self.seconds,
        }
        with disk_errors(folder):
            checkpoint.save(folder, self.round, state, extra, rows.reset_index(drop=True))


def _apart(kept: Tree) -> dict[int, dict[str, Tensor]]:
    """Traces by round, the inverse of `Stack.kept`."""
    names = [name for name in kept if name != "round"]
    rounds = kept["round"].tolist() if kept else []
    return {number: {name: kept[name][i] for name in names} for i, number in enumerate(rounds)}


def _rows_of(rows: pd.DataFrame, run: str) -> pd.DataFrame:
    return rows[rows["run"] == run].drop(columns="run").reset_index(drop=True)
