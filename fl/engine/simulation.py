"""What a run is made of: who takes part in its rounds, on which batches, and how it is scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import Method, Pass, Phase, Sweep
from fl.api.network import Network
from fl.api.task import Task
from fl.api.tasks.classification import CLASSIFICATION
from fl.api.training import WEIGHTS, Training
from fl.api.trees import Tree
from fl.base import rng
from fl.base.schema import GLOBAL, PERSONAL
from fl.engine import engine, modality, processes
from fl.engine.arrays import Arrays
from fl.engine.batches import Schedule, balanced, schedule, steps_of, sweeping
from fl.engine.client_data import ClientData, together
from fl.engine.evaluate import evaluate
from fl.engine.state import Roster, RoundPlan, State, Team
from fl.engine.stragglers import shares, stragglers

Work = Sequence[Fraction]
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, kind) for name, kind in WEIGHTS.items()}


@dataclass(frozen=True)
class Simulation:
    """What a run needs beside its state; see `fl.engine.engine` for what is not explained here.

    Attributes:
        classes: Number of classes.
        seed: The run's.
        task: What labels are, and which metrics are reported.
        by_modality: Where clients differ in modality, the run of each modality alone.
        team: The processes that share the work; None: this one does all of it.
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
        """The state before round 1, from fresh variables or from the stored ones of another run."""
        fresh = self.network.init(rng.torch_seed(self.seed, "init"))
        variables = trees.to(weights or fresh, self.arrays.device)
        counts = self.counts()
        if self.method.check_clients:
            self.method.check_clients(counts, torch.from_numpy(self.client_data.participants))
        state = engine.start(self.method, variables, counts, self.client_data.modality)
        return modality.blanked(state, self.method, self.client_data.modality)

    def counts(self) -> Tensor:
        """Training samples of every client by class, int64 [clients, classes]; zeros where a sample
        has no single class.
        """
        shape = self.client_data.clients, self.classes
        if not self.task.has_classes:
            return torch.zeros(shape, dtype=torch.int64)
        sizes = self.client_data.sizes("train")
        labels = self._labels(together(self.client_data.samples["train"]))
        # A label that is no class is an error where it is trained on, which names its place.
        real = labels < self.classes
        places = np.repeat(np.arange(len(sizes)), sizes) * self.classes + labels
        counts = np.bincount(places[real], minlength=shape[0] * shape[1])
        return torch.from_numpy(counts.reshape(shape))

    def _labels(self, samples: np.ndarray) -> np.ndarray:
        index = torch.from_numpy(samples).to(self.arrays.device)
        return np.asarray(self.arrays.labels(index).cpu())

    def plan(self, round_: int) -> RoundPlan:
        """Round 1, 2, ..., R: who takes part, and their batches."""
        clients, work = self._participants(round_)
        if not self.by_modality:
            return self._planned(round_, self._rosters(clients, work, round_))
        by_modality: list[RoundPlan | None] = []
        for alone in self.by_modality:
            its = np.isin(clients, alone.client_data.participants)
            share = tuple(w for w, k in zip(work, its, strict=False) if k)
            if its.any():
                rosters = alone._rosters(clients[its], share, round_)
                by_modality.append(alone._planned(round_, rosters))
            else:
                by_modality.append(None)
        whole = Roster(torch.from_numpy(clients), self._sizes(clients))
        return replace(self._planned(round_, (whole,)), by_modality=tuple(by_modality))

    def _planned(self, round_: int, rosters: tuple[Roster | None, ...]) -> RoundPlan:
        return RoundPlan(
            round_, rosters, self.arrays, self.training, team=self.team, usual=self._usual
        )

    def _rosters(self, clients: np.ndarray, work: Work, round_: int) -> tuple[Roster | None, ...]:
        """By phase; None for one that is not due."""
        *before, last = self.method.phases
        # These words are keys of random numbers.
        rosters = [
            self._roster(phase, clients, work, round_, f" of exchange {number}")
            if phase.is_active(round_)
            else None
            for number, phase in enumerate(before)
        ]
        return (*rosters, self._roster(last, clients, work, round_, ""))

    def _roster(
        self, phase: Phase, clients: np.ndarray, work: Work, round_: int, location: str
    ) -> Roster:
        """Who takes part in a phase, and the batches of its passes; every pass draws its own."""
        if phase.all_clients:
            clients, work = self.client_data.participants, ()
        schedules = [
            self._schedule(
                pass_,
                clients,
                work,
                round_,
                f"batches{f' of pass {number}' if number else ''}{location}",
            )
            for number, pass_ in enumerate(phase.passes)
        ]
        return Roster(torch.from_numpy(clients), self._sizes(clients), tuple(schedules))

    def _sizes(self, clients: np.ndarray) -> Tensor:
        """Training samples of some clients."""
        sizes = torch.from_numpy(self.client_data.sizes("train")[clients])
        return sizes.to(self.arrays.device, torch.float64)

    @cached_property
    def _usual(self) -> np.ndarray:
        sizes = self.client_data.sizes("train")[self.client_data.participants]
        return steps_of(sizes, self.training)

    @cached_property
    def _class_weights(self) -> np.ndarray | None:
        """Of all clients, see `fl.engine.batches.Schedule`."""
        if self.training.class_weights == "none":
            return None
        return balanced(self.counts().numpy())

    def _schedule(
        self, pass_: Pass | Sweep, clients: np.ndarray, work: Work, round_: int, purpose: str
    ) -> Schedule | None:
        """The batches of one pass; None where it is left out of the round."""
        draws = pass_ if isinstance(pass_, Sweep) else pass_.sampling
        if not draws.is_active(round_):
            return None
        samples = [self.client_data.of_splits(draws.split, int(k)) for k in clients]
        if isinstance(pass_, Sweep):
            return sweeping(self._some(samples, clients, pass_.max_samples, round_, purpose))
        if pass_.sampling.steps is not None and not pass_.sampling.steps(round_):
            return None
        by_class = pass_.sampling.per_class is not None
        return schedule(
            samples,
            clients.tolist(),
            self.training,
            self.seed,
            round_,
            purpose,
            sampling=pass_.sampling,
            work=work,
            labels=[self._labels(numbers) for numbers in samples] if by_class else (),
            classes=self.classes,
            keyed=self.network.random or self.arrays.random,
            refreshes=pass_.refreshes,
            class_weights=None if self._class_weights is None else self._class_weights[clients],
        )

    def _some(
        self,
        samples: list[np.ndarray],
        clients: np.ndarray,
        most: int | None,
        round_: int,
        purpose: str,
    ) -> list[np.ndarray]:
        """At most ``most`` of each client's samples, in their order."""
        if most is None:
            return samples
        draws = (rng.generator(self.seed, purpose, int(k), round_) for k in clients)
        return [
            numbers if len(numbers) <= most else np.sort(draw.choice(numbers, most, replace=False))
            for numbers, draw in zip(samples, draws, strict=True)
        ]

    def _participants(self, round_: int) -> tuple[np.ndarray, Work]:
        """Who takes part, in ascending order, and the share of the work that each does; () if all
        do all of it.
        """
        everybody, training = self.client_data.participants, self.training
        count = max(1, round(training.participation * len(everybody)))
        draw = rng.generator(self.seed, "participants", round_)
        clients = np.sort(draw.choice(everybody, count, replace=False))
        late = stragglers(clients.tolist(), training, self.seed, round_)
        if training.partial_work == "dropped":
            return np.array([k for k in clients if k not in late]), ()
        return clients, shares(clients.tolist(), late, training, self.seed, round_) if late else ()

    def evaluate(self, state: State, round_: int) -> pd.DataFrame:
        """Rows for every client that is evaluated, see `fl.engine.evaluate.evaluate`."""
        return self._evaluated._scores(state, round_)

    @cached_property
    def _evaluated(self) -> Simulation:
        """The simulation in which only those clients have samples whose models are scored."""
        count = self.training.evaluate_clients
        if count is None:
            return self
        return replace(self._alone(self.client_data.sampled(count, self.seed)), team=self.team)

    def _scores(self, state: State, round_: int) -> pd.DataFrame:
        if self.team:
            mine = self._alone(processes.scoring(self.team, self.client_data))
            tables = self.team.exchanged(mine._scores(state, round_))
            by = self.client_data.modality if self.by_modality else None
            return processes.in_order(tables, list(self.method.views), by)
        if self.by_modality:
            by_kind = [
                alone._scores(modality.state_of(method, state), round_)
                for method, alone in zip(self.method.by_modality, self.by_modality, strict=True)
            ]
            return pd.concat(by_kind, ignore_index=True)
        return self._scored(self.method, state, round_)

    def _alone(self, clients: np.ndarray) -> Simulation:
        """The simulation with the samples of some clients, by this process."""
        by_modality = tuple(alone._alone(clients) for alone in self.by_modality)
        data = self.client_data.of_clients(clients)
        return replace(self, client_data=data, by_modality=by_modality, team=None)

    def _scored(self, method: Method, state: State, round_: int) -> pd.DataFrame:
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

    def final(self, state: State) -> dict[str, Any]:
        """The weights to store: by stage, the global model's variables, and the clients' own as a
        stack; where clients differ in modality, of each weight the rows of those who hold it.
        """
        views, kept = self.method.views, {}
        if GLOBAL in views:
            kept[GLOBAL] = views[GLOBAL](state.server, None)
        if PERSONAL in views:
            clients = [state.client(k, self.arrays.device) for k in range(self.client_data.clients)]
            whole = trees.stack([views[PERSONAL](state.server, client) for client in clients])
            kept[PERSONAL] = modality.stored(whole, self.method, self.client_data.modality)
        return kept

    def before(self, weights: Tree) -> pd.DataFrame:
        """Round 0 of a run that starts from a stored model: that model, scored on every client that
        is evaluated.
        """
        return self._evaluated._before(weights)

    def _before(self, weights: Tree) -> pd.DataFrame:
        if self.by_modality:
            tables = [
                alone._before(method.restrict(weights))
                for method, alone in zip(self.method.by_modality, self.by_modality, strict=True)
            ]
            return pd.concat(tables, ignore_index=True)
        view = Method(
            self.method.init, (), self.method.aggregate, {GLOBAL: lambda server, _: dict(server)}
        )
        state = State(trees.to(weights, self.arrays.device), {})
        return self._scored(view, state, 0)
