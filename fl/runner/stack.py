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
from fl.engine.evaluate import metrics_table
from fl.engine.simulate import Round
from fl.engine.simulation import Simulation
from fl.engine.state import State
from fl.store import checkpoint
from fl.store.checkpoint import Checkpoint

logger = logging.getLogger(__name__)


@dataclass
class Stack:
    """Runs by id, their states after ``round``, and their rows so far.

    Attributes:
        members: The runs that the stack began with; those that have ended are no longer in
            ``states``.
        spent: Seconds of work before ``since``.
        since: When this process began or went on.
        traces: By run and round, what the run's method records.
        stretches: By uninterrupted piece of training, the round ``after`` which it began and its
            ``processes``.
    """

    simulations: dict[str, Simulation]
    members: list[str]
    states: dict[str, State]
    rows: dict[str, pd.DataFrame]
    backend: str
    round: int = 0
    spent: float = 0.0
    since: float = field(default_factory=time.monotonic)
    traces: dict[str, dict[int, dict[str, Tensor]]] = field(default_factory=dict)
    stretches: list[dict[str, int]] = field(default_factory=list)

    @classmethod
    def begin(
        cls, simulations: Mapping[str, Simulation], weights: Mapping[str, Tree | None], backend: str
    ) -> Stack:
        """A stack before its first round, from fresh variables or from the stored model of another
        run.
        """
        states, rows = {}, {}
        for run, simulation in simulations.items():
            start = weights[run]
            states[run] = simulation.begin(start)
            rows[run] = metrics_table([]) if start is None else simulation.evaluate_start(start)
        return cls(dict(simulations), list(simulations), states, rows, backend)

    @classmethod
    def resume(cls, saved: Checkpoint, simulations: Mapping[str, Simulation]) -> Stack:
        """A stack from its checkpoint; members that are no longer asked for are left out."""
        members = [run for run in saved.extra["members"] if run in simulations]
        states, rows, traces = {}, dict.fromkeys(members, metrics_table([])), {}
        for run in [run for run in members if run in saved.state]:
            simulation, tree = simulations[run], saved.state[run]
            server = trees.to(tree["server"], simulation.arrays.device)
            clients = simulation.begin().client_states.from_checkpoint(tree["clients"])
            states[run] = State(server, clients)
            its = saved.rows[saved.rows["run"] == run]
            rows[run] = its.drop(columns="run").reset_index(drop=True)
            traces[run] = _by_round(tree.get("traces", {}))
        logger.info("resumed after round %d", saved.round)
        return cls(
            {run: simulations[run] for run in members},
            members,
            states,
            rows,
            saved.extra["backend"],
            saved.round,
            saved.extra["seconds"],
            traces=traces,
            stretches=saved.extra.get("stretches", []),
        )

    @property
    def seconds(self) -> float:
        """Of work for each member: equal shares of the time in which they were trained together."""
        return (self.spent + time.monotonic() - self.since) / len(self.members)

    def add(self, finished: Mapping[str, Round]) -> None:
        """Add a finished round."""
        for run, round_ in finished.items():
            self.round = round_.number
            self.rows[run] = pd.concat([self.rows[run], round_.rows], ignore_index=True)
            if round_.traces:
                self.traces.setdefault(run, {})[round_.number] = round_.traces
        self.states = {run: done.state for run, done in finished.items() if not done.ends_early}

    def stacked_traces(self, run: str) -> dict[str, Tensor] | None:
        """A run's traces, by name a tensor [rounds evaluated, ...], and those rounds as ``round``;
        None if there are none.
        """
        traces = self.traces.get(run)
        if not traces:
            return None
        names = next(iter(traces.values()))
        if "round" in names:
            raise FedloomError("a trace is named 'round'. Allowed: any other name")
        stacks = {name: torch.stack([trace[name] for trace in traces.values()]) for name in names}
        return {"round": torch.tensor(list(traces)), **stacks}

    def save(self, folder: Path) -> None:
        """Save a checkpoint of this round in the folder of one of the runs."""
        saved = {}
        for run, state in self.states.items():
            saved[run] = {
                "server": state.server,
                "clients": state.client_states.to_checkpoint(),
                "traces": self.stacked_traces(run) or {},
            }
        rows = pd.concat([self.rows[run].assign(run=run) for run in self.states])
        seconds = self.seconds * len(self.members)
        extra = {
            "members": self.members,
            "backend": self.backend,
            "seconds": seconds,
            "stretches": self.stretches,
        }
        with disk_errors(folder):
            checkpoint.save(folder, self.round, saved, extra, rows.reset_index(drop=True))


def _by_round(stacks: Tree) -> dict[int, dict[str, Tensor]]:
    """The inverse of `Stack.stacked_traces`."""
    names = [name for name in stacks if name != "round"]
    rounds = stacks["round"].tolist() if stacks else []
    return {number: {name: stacks[name][i] for name in names} for i, number in enumerate(rounds)}
