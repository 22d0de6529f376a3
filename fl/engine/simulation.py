"""A run without its state: what it trains, on which samples, and how its models are scored.

Where clients have different networks, a run consists of several runs (`Simulation.subruns`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import Method
from fl.api.training import check_stragglers
from fl.api.trees import Tree
from fl.base import rng
from fl.base.schema import GLOBAL, PERSONAL
from fl.engine import engine, processes
from fl.engine.evaluate import evaluate
from fl.engine.run_basis import MethodComponents, RunBasis, build
from fl.engine.scheduling import Scheduler
from fl.engine.state import RoundSchedule, State, Team
from fl.pytorch.construction import seeded


@dataclass(frozen=True, kw_only=True)
class Simulation(RunBasis):
    """A run without its state.

    Attributes:
        method: The method.
        seed: Seed of the run.
        team: The processes that share the work; None: this process does all of it.
    """

    method: Method
    seed: int
    team: Team | None = None

    @classmethod
    def of(cls, components: MethodComponents, basis: RunBasis, seed: int) -> Simulation:
        """Make the simulation of a method and a seed."""
        context = replace(basis.context(seed), server_training=basis.server_training(seed))
        return cls(**basis.values(), method=build(components, context), seed=seed)

    def with_method(self, components: MethodComponents, seed: int) -> Simulation:
        """Make the simulation of another run on the same data, with its own method and seed."""
        return self.of(components, self, seed)

    def with_team(self, team: Team) -> Simulation:
        """Return the simulation with processes that share its work."""
        return replace(self, team=team)

    @property
    def is_composed(self) -> bool:
        """Whether clients have different networks, so that the run has several `subruns`."""
        return False

    @property
    def methods(self) -> list[Method]:
        """The method, and those of its subruns if it has several."""
        return [self.method]

    @property
    def client_facts(self) -> dict[str, Tensor]:
        """Facts of every client beside its id and class counts, [clients, ...]."""
        return {}

    @property
    def groups(self) -> np.ndarray | None:
        """Number of the subrun of every client, [clients]; None if there is only one."""
        return None

    def subruns(self, state: State) -> list[tuple[Simulation, State]]:
        """Return the runs of one network each of which this one consists, with their states."""
        return [(self, state)]

    def start_subruns(self, weights: Tree) -> list[tuple[Simulation, Tree]]:
        """Return the runs of which this one consists, with their variables of a stored model."""
        return [(self, weights)]

    def begin(self, weights: Tree | None = None) -> State:
        """Return the state before round 1.

        Args:
            weights: Stored variables of another run; None: fresh variables.
        """
        fresh_variables = self.network.init(rng.torch_seed(self.seed, "init"))
        variables = trees.to(weights or fresh_variables, self.arrays.device)
        counts = self.class_counts()
        clients = torch.from_numpy(self.client_data.participants)
        check_stragglers(self.training.stragglers, self.training.participants(len(clients)))
        if self.method.check_clients:
            self.method.check_clients(counts, clients)
        with seeded(rng.torch_seed(self.seed, "method")):
            return engine.initial_state(self.method, variables, counts, self.client_facts)

    def class_counts(self) -> Tensor:
        """Count the training samples of every client by class, int64 [clients, classes]."""
        return self.scheduler.class_counts()

    @cached_property
    def scheduler(self) -> Scheduler:
        """The scheduler of rounds."""
        return Scheduler(self, self.method, self.seed, self.team)

    def round_schedule(self, round_: int) -> RoundSchedule:
        """Return the participants and batches of a round, 1, 2, ..., R."""
        clients, work = self.scheduler.participants(round_)
        return self.scheduler.round_schedule(round_, clients, work)

    @staticmethod
    def run_rounds(
        runs: Sequence[Simulation],
        states: Sequence[State],
        schedules: Sequence[RoundSchedule],
        backend: str,
    ) -> list[tuple[State, Tensor]]:
        """Run one round of several runs of this kind, see `engine.run_rounds`."""
        return engine.run_rounds([run.method for run in runs], states, schedules, backend)

    def evaluate(self, state: State, round_: int) -> pd.DataFrame:
        """Return metrics for every evaluated client, see `fl.engine.evaluate.evaluate`."""
        return self._evaluated._score(state, round_)

    @cached_property
    def _evaluated(self) -> Simulation:
        """The simulation in which only evaluated clients have samples."""
        count = self.training.evaluate_clients
        if count is None:
            return self
        clients = self.client_data.sample_clients(count, self.seed)
        return replace(self.select_clients(clients), team=self.team)

    def _score(self, state: State, round_: int) -> pd.DataFrame:
        if self.team:
            local = self.select_clients(processes.clients_to_score(self.team, self.client_data))
            tables: list[pd.DataFrame] = self.team.exchange(local._score(state, round_))
            rows: pd.DataFrame = processes.sort_rows(tables, list(self.method.views), self.groups)
            return rows
        return _joined(
            [
                subrun._score_views(subrun.method, subrun_state, round_)
                for subrun, subrun_state in self.subruns(state)
            ]
        )

    def select_clients(self, clients: np.ndarray) -> Simulation:
        """Return the simulation with the samples of some clients, computed by this process."""
        return replace(self, client_data=self.client_data.select_clients(clients), team=None)

    def _score_views(self, method: Method, state: State, round_: int) -> pd.DataFrame:
        return evaluate(
            method,
            self.network,
            state,
            self.arrays,
            self.client_data,
            round_,
            self.classes,
            task=self.task,
        )

    def final_weights(self, state: State) -> dict[str, Tree]:
        """Return the weights to store, by stage.

        The personal stage is a stack of all clients' variables.
        """
        views, weights = self.method.views, dict[str, Tree]()
        if GLOBAL in views:
            weights[GLOBAL] = views[GLOBAL](state.server, None)
        if PERSONAL in views:
            clients = [state.client(k, self.arrays.device) for k in range(self.client_data.clients)]
            models = [views[PERSONAL](state.server, client) for client in clients]
            weights[PERSONAL] = trees.stack(models)
        return weights

    def evaluate_start(self, weights: Tree) -> pd.DataFrame:
        """Score a stored model on every evaluated client, as round 0 of a run that begins with it.

        Args:
            weights: The variables of the stored model.
        """
        subruns = self._evaluated.start_subruns(weights)
        return _joined([subrun._score_start(subrun_weights) for subrun, subrun_weights in subruns])

    def _score_start(self, weights: Tree) -> pd.DataFrame:
        view = Method(
            self.method.init, (), self.method.aggregate, {GLOBAL: lambda server, _: dict(server)}
        )
        state = State(trees.to(weights, self.arrays.device), {})
        return self._score_views(view, state, 0)


def _joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    return tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True)
