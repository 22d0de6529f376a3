"""A run of one network, without its state: what it trains, and how its models are scored.

Where clients have different networks, a run holds several of these
(`fl.engine.modality_simulation`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import Method, View
from fl.api.state import Weights
from fl.api.task import Task
from fl.api.training import Training, check_stragglers
from fl.api.trees import Tree
from fl.base import rng
from fl.base.schema import GLOBAL, PERSONAL
from fl.engine import engine
from fl.engine.client_data import ClientData
from fl.engine.evaluate import evaluate
from fl.engine.run_setup import MethodComponents, RunSetup, build
from fl.engine.scheduling import Scheduler
from fl.engine.state import UNDIVIDED, Division, RoundSchedule, State
from fl.pytorch.construction import seeded

RunRounds = Callable[
    [Sequence[Method], Sequence[State], Sequence[RoundSchedule], str, Division],
    list[tuple[State, Tensor]],
]
"""Type of `fl.engine.engine.run_rounds`."""


class Trainable(Protocol):
    """A run that is trained round by round: a `Simulation`, or one that holds several."""

    @property
    def method(self) -> Method:
        """The method."""

    @property
    def training(self) -> Training:
        """Settings of training."""

    @property
    def task(self) -> Task:
        """Type of the labels."""

    @property
    def client_data(self) -> ClientData:
        """The samples of each client."""

    @property
    def device(self) -> torch.device:
        """The device on which the run is trained."""

    @property
    def run_rounds(self) -> RunRounds:
        """The function that runs one round of several runs of this kind."""

    def subruns(self, state: State) -> list[tuple[Simulation, State]]:
        """Return the runs of one network of which this one consists, with their states."""

    def begin(self, weights: Tree | None = None) -> State:
        """Return the state before round 1, with these stored variables or with fresh ones."""

    def round_schedule(self, round_: int, state: State | None = None) -> RoundSchedule:
        """Return the participants and batches of a round, 1, 2, ..., R; see `Simulation`."""

    @property
    def usual_participants(self) -> int:
        """Number of clients of a round, without those who fail or are away."""

    def finish_round(self, schedule: RoundSchedule, state: State, losses: Tensor) -> State:
        """Return the state after a round with what decides who takes part in the next one."""

    def evaluate(self, state: State, round_: int, division: Division = UNDIVIDED) -> pd.DataFrame:
        """Return metrics of every evaluated client."""

    def evaluate_start(self, weights: Tree) -> pd.DataFrame:
        """Score a stored model on every evaluated client, as round 0 of a run."""

    def final_weights(self, state: State) -> dict[str, Tree]:
        """Return the weights to store, by stage."""


class Participation(Protocol):
    """Decides who takes part in rounds, if more than the seed does (`fl.engine.participation`)."""

    def begin(self, state: State) -> Tree:
        """Return `State.participation` before round 1."""

    def count(self, simulation: Simulation) -> int:
        """Return the number of clients whose work the server asks for in a round."""

    def schedule(self, simulation: Simulation, round_: int, state: State) -> RoundSchedule:
        """Return the participants and batches of a round, with its simulated time."""

    def finish(
        self, simulation: Simulation, schedule: RoundSchedule, state: State, losses: Tensor
    ) -> Tree:
        """Return `State.participation` after a round.

        Args:
            simulation: The run.
            schedule: The schedule of the round.
            state: The state after the round.
            losses: The participants' mean training losses, [m].
        """


@dataclass(frozen=True, kw_only=True)
class Simulation(RunSetup):
    """A run of one network, without its state.

    Attributes:
        method: The method.
        seed: Seed of the run.
        participation: What decides who takes part in rounds; None: the seed.
    """

    method: Method
    seed: int
    participation: Participation | None = None

    @classmethod
    def of(cls, components: MethodComponents, setup: RunSetup, seed: int) -> Simulation:
        """Make the simulation of a method and a seed."""
        context = replace(setup.context(seed), server_training=setup.server_training(seed))
        return cls(**setup.values(), method=build(components, context), seed=seed)

    def subruns(self, state: State) -> list[tuple[Simulation, State]]:
        """Return this run, which has one network, with its state."""
        return [(self, state)]

    def begin(
        self, weights: Tree | None = None, facts: Mapping[str, Tensor] | None = None
    ) -> State:
        """Return the state before round 1.

        Args:
            weights: Stored variables of another run; None: fresh variables.
            facts: Facts of every client beside its id and class counts, [clients, ...].
        """
        fresh_variables = self.network.init(rng.torch_seed(self.seed, "init"))
        variables = trees.to(weights or fresh_variables, self.device)
        if self.training.rounding:
            params = _with_other_last_bits(variables["params"], self.seed, self.training.rounding)
            variables = {**variables, "params": params}
        counts = self.class_counts()
        clients = torch.from_numpy(self.client_data.participants)
        check_stragglers(self.training.stragglers, self.training.participants(len(clients)))
        if self.method.check_clients:
            self.method.check_clients(counts, clients)
        with seeded(rng.torch_seed(self.seed, "method")):
            state = engine.initial_state(self.method, variables, counts, facts)
        if self.participation is None:
            return state
        return replace(state, participation=self.participation.begin(state))

    @cached_property
    def scheduler(self) -> Scheduler:
        """The scheduler of rounds."""
        return Scheduler(self, self.method, self.seed)

    def round_schedule(self, round_: int, state: State | None = None) -> RoundSchedule:
        """Return the participants and batches of a round, 1, 2, ..., R.

        Args:
            round_: Number of the round.
            state: The state before it; None: that before round 1.
        """
        if self.participation is None:
            clients, work = self.scheduler.participants(round_)
            return self.scheduler.round_schedule(round_, clients, work)
        return self.participation.schedule(self, round_, state or self.begin())

    @property
    def usual_participants(self) -> int:
        """Number of clients of a round, without those who fail or are away."""
        if self.participation is not None:
            return self.participation.count(self)
        return len(self.round_schedule(1).clients)

    def finish_round(self, schedule: RoundSchedule, state: State, losses: Tensor) -> State:
        """Return the state after a round with what decides who takes part in the next one.

        Args:
            schedule: The schedule of the round.
            state: The state after it.
            losses: The participants' mean training losses, [m].
        """
        if self.participation is None:
            return state
        after = self.participation.finish(self, schedule, state, losses)
        return replace(state, participation=after)

    run_rounds = staticmethod(engine.run_rounds)

    def evaluate(self, state: State, round_: int, division: Division = UNDIVIDED) -> pd.DataFrame:
        """Return metrics of every evaluated client, see `fl.engine.evaluate.evaluate`.

        Args:
            state: The state after the round.
            round_: Number of the round.
            division: How the work is divided.
        """
        return self.score(self.evaluated_data, state, round_, division)

    @cached_property
    def evaluated_data(self) -> ClientData:
        """The samples of the clients that are evaluated; the others have none."""
        count = self.training.evaluate_clients
        if count is None:
            return self.client_data
        return self.client_data.select_clients(self.client_data.sample_clients(count, self.seed))

    def score(
        self, data: ClientData, state: State, round_: int, division: Division = UNDIVIDED
    ) -> pd.DataFrame:
        """Return metrics of the clients that have samples in ``data``, see `evaluate`."""
        rows = evaluate(self, self.method, state, division.own_clients(data), round_)
        return division.join_metrics(rows, [*self.method.views])

    def final_weights(self, state: State) -> dict[str, Tree]:
        """Return the weights to store, by stage.

        The personal stage is a stack of all clients' variables.
        """
        views, weights = self.method.views, dict[str, Tree]()
        if GLOBAL in views:
            weights[GLOBAL] = views[GLOBAL](state.server, None)
        if PERSONAL in views:
            clients = [state.client(k, self.device) for k in range(self.client_data.clients)]
            models = [views[PERSONAL](state.server, client) for client in clients]
            weights[PERSONAL] = trees.stack(models)
        return weights

    def evaluate_start(self, weights: Tree) -> pd.DataFrame:
        """Score a stored model on every evaluated client, as round 0 of a run that begins with it.

        Args:
            weights: The variables of the stored model.
        """
        return self.score_model(self.evaluated_data, weights)

    def score_model(self, data: ClientData, weights: Tree) -> pd.DataFrame:
        """Score a stored model on the clients that have samples in ``data``."""
        views: dict[str, View] = {GLOBAL: lambda server, _: dict(server)}
        state = State(trees.to(weights, self.device), {})
        return evaluate(self, replace(self.method, views=views), state, data, 0)


def _with_other_last_bits(weights: Mapping[str, Tensor], seed: int, number: int) -> Weights:
    """Return weights with another last bit, up or down; those that are 0 stay.

    Args:
        weights: The weights.
        seed: Seed of the run.
        number: Number of the repetition (`Training.rounding`).
    """
    changed = dict(weights)
    for name, weight in weights.items():
        if weight.is_floating_point():
            drawn = rng.generator(seed, "rounding", number, name).integers(0, 2, weight.shape)
            goes_up = torch.from_numpy(np.asarray(drawn, bool)).to(weight.device)
            infinity = torch.full_like(weight, torch.inf)
            neighbour = torch.nextafter(weight, torch.where(goes_up, infinity, -infinity))
            changed[name] = torch.where(weight == 0, weight, neighbour)
    return changed
