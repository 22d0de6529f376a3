"""A run without its state: what it trains, on which samples, and how its models are scored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import Method
from fl.api.network import Network
from fl.api.task import Task
from fl.api.tasks.classification import CLASSIFICATION
from fl.api.training import WEIGHTS, Training, check_stragglers
from fl.api.trees import Tree
from fl.base import rng
from fl.base.schema import GLOBAL, PERSONAL
from fl.engine import engine, modality_rounds, processes
from fl.engine.client_data import ClientData
from fl.engine.evaluate import evaluate
from fl.engine.sample_arrays import Arrays
from fl.engine.scheduling import Scheduler
from fl.engine.state import Roster, RoundSchedule, State, Team
from fl.pytorch.construction import seeded

TYPE_BY_PRECISION: dict[str, torch.dtype] = {
    precision: getattr(torch, name) for precision, name in WEIGHTS.items()
}


@dataclass(frozen=True)
class Simulation:
    """A run without its state.

    Attributes:
        method: The method.
        network: The network.
        training: Settings of training.
        arrays: The samples.
        client_data: The samples of each client.
        classes: Number of classes.
        seed: Seed of the run.
        task: Type of the labels, which decides loss and metrics.
        by_modality: If clients differ in modality, the run of each modality.
        team: The processes that share the work; None: this process does all of it.
    """

    method: Method
    network: Network
    training: Training
    arrays: Arrays
    client_data: ClientData
    classes: int
    seed: int
    task: Task = CLASSIFICATION
    by_modality: tuple[Simulation, ...] = ()
    team: Team | None = None

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
        modality = self.client_data.modality
        with seeded(rng.torch_seed(self.seed, "method")):
            state = engine.initial_state(self.method, variables, counts, modality)
        return modality_rounds.zero_missing_weights(state, self.method, modality)

    def class_counts(self) -> Tensor:
        """Count the training samples of every client by class, int64 [clients, classes]."""
        return self._scheduler.class_counts()

    @cached_property
    def _scheduler(self) -> Scheduler:
        return Scheduler(
            self.method,
            self.network,
            self.training,
            self.arrays,
            self.client_data,
            self.classes,
            self.seed,
            self.task,
            self.team,
        )

    def round_schedule(self, round_: int) -> RoundSchedule:
        """Return the participants and batches of a round, 1, 2, ..., R."""
        scheduler = self._scheduler
        clients, work = scheduler.participants(round_)
        if not self.by_modality:
            return scheduler.round_schedule(round_, clients, work)
        by_modality: list[RoundSchedule | None] = []
        for simulation in self.by_modality:
            is_member = np.isin(clients, simulation.client_data.participants)
            member_work = tuple(w for w, k in zip(work, is_member, strict=False) if k)
            by_modality.append(
                simulation._scheduler.round_schedule(round_, clients[is_member], member_work)
                if is_member.any()
                else None
            )
        roster = Roster(torch.from_numpy(clients), scheduler.sizes(clients))
        schedule = scheduler.without_batches(round_, (roster,))
        return replace(schedule, by_modality=tuple(by_modality))

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
        return replace(self._select_clients(clients), team=self.team)

    def _score(self, state: State, round_: int) -> pd.DataFrame:
        if self.team:
            local = self._select_clients(processes.clients_to_score(self.team, self.client_data))
            tables: list[pd.DataFrame] = self.team.exchange(local._score(state, round_))
            modality = self.client_data.modality if self.by_modality else None
            rows: pd.DataFrame = processes.sort_rows(tables, list(self.method.views), modality)
            return rows
        if self.by_modality:
            tables = [
                simulation._score(modality_rounds.modality_state(method, state), round_)
                for method, simulation in zip(
                    self.method.by_modality, self.by_modality, strict=True
                )
            ]
            return pd.concat(tables, ignore_index=True)
        return self._score_views(self.method, state, round_)

    def _select_clients(self, clients: np.ndarray) -> Simulation:
        """Return the simulation with the samples of some clients, computed by this process."""
        by_modality = tuple(simulation._select_clients(clients) for simulation in self.by_modality)
        data = self.client_data.select_clients(clients)
        return replace(self, client_data=data, by_modality=by_modality, team=None)

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

        The personal stage is a stack of all clients' variables. If clients differ in modality, each
        weight has the rows of the clients that have it.
        """
        views, weights = self.method.views, dict[str, Tree]()
        if GLOBAL in views:
            weights[GLOBAL] = views[GLOBAL](state.server, None)
        if PERSONAL in views:
            clients = [state.client(k, self.arrays.device) for k in range(self.client_data.clients)]
            stack = trees.stack([views[PERSONAL](state.server, client) for client in clients])
            modality = self.client_data.modality
            weights[PERSONAL] = modality_rounds.drop_missing_rows(stack, self.method, modality)
        return weights

    def evaluate_start(self, weights: Tree) -> pd.DataFrame:
        """Score a stored model on every evaluated client, as round 0 of a run that begins with it.

        Args:
            weights: The variables of the stored model.
        """
        return self._evaluated._score_start(weights)

    def _score_start(self, weights: Tree) -> pd.DataFrame:
        if self.by_modality:
            tables = [
                simulation._score_start(method.restrict(weights))
                for method, simulation in zip(
                    self.method.by_modality, self.by_modality, strict=True
                )
            ]
            return pd.concat(tables, ignore_index=True)
        view = Method(
            self.method.init, (), self.method.aggregate, {GLOBAL: lambda server, _: dict(server)}
        )
        state = State(trees.to(weights, self.arrays.device), {})
        return self._score_views(view, state, 0)
