"""A run without its state: what it trains, on which samples, and how its models are scored.

A run is made of the objects that its spec names. Where clients have different networks, it consists
of several runs (`Simulation.subruns`).

A server may train on its own labelled samples (``server`` of a partition). The server takes its
steps like one client of a `fl.api.method.Pass`, on batches keyed by (seed, round), and one run
after another. So the steps are the same on every backend, for seeds that are trained together, and
if several processes train the clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import BuildContext, Method, MethodTerm, Pass
from fl.api.network import CONSTRUCTION_SEED, Network
from fl.api.protocols import TrainOnServer
from fl.api.task import Task
from fl.api.tasks.classification import CLASSIFICATION
from fl.api.training import WEIGHTS, Training, check_stragglers
from fl.api.trees import Tree
from fl.base import rng
from fl.base.schema import GLOBAL, PERSONAL
from fl.base.seams import Seam
from fl.data.inputs import Modality
from fl.engine import engine, processes
from fl.engine.backends import Cohort, loop
from fl.engine.batches import schedule
from fl.engine.client_data import ClientData
from fl.engine.evaluate import evaluate
from fl.engine.sample_arrays import Arrays
from fl.engine.scheduling import Scheduler
from fl.engine.state import RoundSchedule, State, Team
from fl.pytorch.construction import seeded

TYPE_BY_PRECISION: dict[str, torch.dtype] = {
    precision: getattr(torch, name) for precision, name in WEIGHTS.items()
}


@dataclass(frozen=True)
class RunComponents:
    """The objects that a run's spec names, and the task and the modalities of its data set."""

    model: Any
    method: MethodComponents
    task: Task = CLASSIFICATION
    modalities: tuple[Modality, ...] = ()


@dataclass(frozen=True)
class MethodComponents:
    """A method and what a study adds to it, as objects that have a ``build``.

    Attributes:
        method: The method.
        terms: Terms of its loss.
        alterations: Alterations of features.
        upload_filters: Filters that change what clients send, in the order in which they act.
        aggregation: At most one aggregation, which replaces the mean of uploads.
    """

    method: Any
    terms: tuple[Any, ...] = ()
    alterations: tuple[Any, ...] = ()
    upload_filters: tuple[Any, ...] = ()
    aggregation: tuple[Any, ...] = ()


METHOD_BUILT = Seam[Callable[[Method, BuildContext, MethodComponents], Method]]("method built")
"""Functions that wrap a finished method, and return another method or the same one."""


def build(components: MethodComponents, context: BuildContext) -> Method:
    """Build a method with everything that the study adds to it.

    Args:
        components: The method and its additions.
        context: What they are built for.

    Returns:
        The method, with terms attached and wrapped by the hooks of `METHOD_BUILT`. Shared
        generators are seeded meanwhile, equally for all runs, which may be trained in one stack.
    """
    with seeded(CONSTRUCTION_SEED):
        return _build(components, context)


def _build(components: MethodComponents, context: BuildContext) -> Method:
    terms = tuple(term.build(context) for term in components.terms)
    alterations = tuple(alteration.build(context) for alteration in components.alterations)
    context_with_additions = replace(context, terms=terms, alterations=alterations)
    method: Method = components.method.build(context_with_additions)
    for term in terms:
        if isinstance(term, MethodTerm):
            method = term.attach(method)
    for wrap in METHOD_BUILT.hooks():
        method = wrap(method, context, components)
    return method


def build_context(
    components: RunComponents,
    network: Network,
    training: Training,
    arrays: Arrays,
    data: ClientData,
    classes: int,
    seed: int,
) -> BuildContext:
    """Return what a run's method is built for."""
    return BuildContext(
        *(network, training, classes, data.clients, arrays.shape, seed),
        absent_clients=len(data.absent_clients),
        task=components.task,
        shapes=arrays.shapes,
        tokens=frozenset(modality.name for modality in components.modalities if modality.tokens),
    )


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
    team: Team | None = None

    @classmethod
    def of(
        cls,
        components: RunComponents,
        network: Network,
        training: Training,
        arrays: Arrays,
        data: ClientData,
        classes: int,
        seed: int,
    ) -> Simulation:
        """Make the simulation of a network with some inputs and clients."""
        context = build_context(components, network, training, arrays, data, classes, seed)
        train_on_server = server_training(arrays, data, network, training, classes, seed)
        method = build(components.method, replace(context, server_training=train_on_server))
        return cls(method, network, training, arrays, data, classes, seed, components.task)

    def with_seed(self, components: RunComponents, seed: int) -> Simulation:
        """Make the simulation of a run that differs only in its seed; it uses the same data."""
        return self.of(
            components,
            self.network,
            self.training,
            self.arrays,
            self.client_data,
            self.classes,
            seed,
        )

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


PURPOSE = "batches at the server"


def server_training(
    arrays: Arrays, data: ClientData, network: Network, training: Training, classes: int, seed: int
) -> TrainOnServer | None:
    """Return the function by which a run's server trains on its own samples.

    Args:
        arrays: The samples.
        data: The samples of each client and of the server.
        network: The network.
        training: Settings of training; gradients on the server are not clipped.
        classes: Number of classes.
        seed: Seed of the run.

    Returns:
        The function; None if the server has no samples.
    """
    samples = data.server
    if not len(samples):
        return None
    labels = arrays.labels(torch.from_numpy(samples).to(arrays.device)).cpu().numpy()

    def train_on_server(pass_: Pass, tree: Tree, round_: int) -> Tree:
        cohort = Cohort(
            clients=trees.stack([tree]),
            ids=torch.zeros(1, dtype=torch.int64),
            server={},
            server_is_stacked=False,
            schedule=schedule(
                [samples],
                [0],
                training,
                seed,
                round_,
                PURPOSE,
                sampling=pass_.sampling,
                labels=[labels],
                classes=classes,
                keyed=network.random or arrays.random,
                refreshes=pass_.refreshes,
            ),
            arrays=arrays,
            round=round_,
            training=replace(training, clip_norm=None),
        )
        with torch.enable_grad():
            return trees.take(loop(pass_, cohort).client_states, 0)

    return train_on_server
