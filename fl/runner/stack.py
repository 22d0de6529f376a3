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
    """Runs that are trained together, after ``round``.

    Attributes:
        simulations: The simulation of each run.
        members: The runs with which the stack began; ended runs are no longer in ``states``.
        states: The state of each run that has not ended.
        rows: Metrics of each run so far.
        backend: Name of the backend.
        round: Number of completed rounds.
        earlier_seconds: Seconds of work in earlier processes.
        begin_time: Time at which this process began or resumed the stack.
        traces: Traces of the run's method, by run and round.
        stretches: For each uninterrupted stretch of training, the round ``after`` which it began
            and its number of ``processes``.
    """

    simulations: dict[str, Simulation]
    members: list[str]
    states: dict[str, State]
    rows: dict[str, pd.DataFrame]
    backend: str
    round: int = 0
    earlier_seconds: float = 0.0
    begin_time: float = field(default_factory=time.monotonic)
    traces: dict[str, dict[int, dict[str, Tensor]]] = field(default_factory=dict)
    stretches: list[dict[str, int]] = field(default_factory=list)

    @classmethod
    def begin(
        cls, simulations: Mapping[str, Simulation], weights: Mapping[str, Tree | None], backend: str
    ) -> Stack:
        """Return a stack before its first round.

        Args:
            simulations: The simulation of each run.
            weights: The stored model with which each run begins; None: fresh variables.
            backend: Name of the backend.
        """
        states, rows = {}, {}
        for run, simulation in simulations.items():
            start = weights[run]
            states[run] = simulation.begin(start)
            rows[run] = metrics_table([]) if start is None else simulation.evaluate_start(start)
        return cls(dict(simulations), list(simulations), states, rows, backend)

    @classmethod
    def resume(cls, saved: Checkpoint, simulations: Mapping[str, Simulation]) -> Stack:
        """Return a stack from its checkpoint.

        Args:
            saved: The checkpoint.
            simulations: The simulation of each run; other runs of the checkpoint are left out.
        """
        members = [run for run in saved.extra["members"] if run in simulations]
        states, rows, traces = {}, dict.fromkeys(members, metrics_table([])), {}
        for run in [run for run in members if run in saved.state]:
            simulation, tree = simulations[run], saved.state[run]
            server = trees.to(tree["server"], simulation.arrays.device)
            clients = simulation.begin().client_states.from_checkpoint(tree["clients"])
            states[run] = State(server, clients)
            run_rows = saved.rows[saved.rows["run"] == run]
            rows[run] = run_rows.drop(columns="run").reset_index(drop=True)
            traces[run] = _unstack_traces(tree.get("traces", {}))
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
        """Seconds of work for each run, an equal share of the time of the stack."""
        return (self.earlier_seconds + time.monotonic() - self.begin_time) / len(self.members)

    def add(self, finished: Mapping[str, Round]) -> None:
        """Add a finished round of some runs."""
        for run, round_ in finished.items():
            self.round = round_.number
            self.rows[run] = pd.concat([self.rows[run], round_.rows], ignore_index=True)
            if round_.traces:
                self.traces.setdefault(run, {})[round_.number] = round_.traces
        self.states = {
            run: round_.state for run, round_ in finished.items() if not round_.ends_early
        }

    def stacked_traces(self, run: str) -> dict[str, Tensor] | None:
        """Return a run's traces, stacked over rounds.

        Args:
            run: Id of the run.

        Returns:
            By name a tensor [evaluated rounds, ...], and the rounds as ``round``; None if there are
            no traces.

        Raises:
            FedloomError: If a trace is named ``round``.
        """
        traces = self.traces.get(run)
        if not traces:
            return None
        names = next(iter(traces.values()))
        if "round" in names:
            raise FedloomError("a trace of the method is named 'round'", advice="rename it")
        stacks = {name: torch.stack([trace[name] for trace in traces.values()]) for name in names}
        return {"round": torch.tensor(list(traces)), **stacks}

    def save(self, folder: Path) -> None:
        """Save a checkpoint of this round in a folder."""
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


def _unstack_traces(stacks: Tree) -> dict[int, dict[str, Tensor]]:
    """Split the result of `Stack.stacked_traces` by round."""
    names = [name for name in stacks if name != "round"]
    rounds = stacks["round"].tolist() if stacks else []
    return {number: {name: stacks[name][i] for name in names} for i, number in enumerate(rounds)}
