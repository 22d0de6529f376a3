"""A run: rounds of a method over a partition, evaluated. The code that decides a run's numbers.

Whatever this module imports is part of every run's identity. Watching, storing and resuming a run
are not; they are in `fl.train.job`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import Method, Pass, Phase, Sweep
from fl.api.network import Network
from fl.api.task import Task
from fl.api.tasks.classification import CLASSIFICATION
from fl.api.training import WEIGHTS, Training, learning_rate
from fl.api.trees import Tree
from fl.base import rng
from fl.base.errors import FedloomError
from fl.base.schema import GLOBAL, PERSONAL
from fl.engine import engine, holders, modal, processes
from fl.engine.arrays import Arrays
from fl.engine.batches import Schedule, schedule, steps_of, sweeping
from fl.engine.evaluate import Held, as_rows, evaluate
from fl.engine.state import Plan, Roster, State, Team
from fl.engine.stragglers import shares, stragglers
from fl.pytorch import draws

Work = Sequence[Fraction]
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, kind) for name, kind in WEIGHTS.items()}


@dataclass(frozen=True)
class Simulation:
    """What a run needs beside its state; see `fl.engine.engine` for what is not explained here.

    Attributes:
        classes: Number of classes.
        seed: The run's.
        task: What labels are, and which metrics are reported.
        modals: Where clients differ in modality, the run of each modality alone.
        team: The processes that share the work; None: this one does all of it.
    """

    method: Method
    network: Network
    training: Training
    arrays: Arrays
    held: Held
    classes: int
    seed: int
    task: Task = CLASSIFICATION
    modals: tuple[Simulation, ...] = ()
    team: Team | None = None

    def begin(self, weights: Tree | None = None) -> State:
        """The state before round 1, from fresh variables or from the stored ones of another run."""
        fresh = self.network.init(rng.torch_seed(self.seed, "init"))
        variables = trees.to(weights or fresh, self.arrays.device)
        counts = self.counts()
        if self.method.admit:
            self.method.admit(counts, torch.from_numpy(self.held.participants))
        state = engine.start(self.method, variables, counts, self.held.modality)
        return holders.blanked(state, self.method, self.held.modality)

    def counts(self) -> Tensor:
        """Training samples of every client by class, int64 [clients, classes]; zeros where a sample
        has no single class.
        """
        shape = self.held.clients, self.classes
        if not self.task.counted:
            return torch.zeros(shape, dtype=torch.int64)
        held = self.held.samples["train"]
        labels = self._labels(np.concatenate(held))
        # A label that is no class is an error where it is trained on, which names its place.
        real = labels < self.classes
        places = np.repeat(np.arange(len(held)), [len(own) for own in held]) * self.classes + labels
        found = np.bincount(places[real], minlength=shape[0] * shape[1])
        return torch.from_numpy(found.reshape(shape))

    def _labels(self, samples: np.ndarray) -> np.ndarray:
        index = torch.from_numpy(samples).to(self.arrays.device)
        return np.asarray(self.arrays.labels(index).cpu())

    def plan(self, round_: int) -> Plan:
        """Round 1, 2, ..., R: who takes part, and their batches."""
        clients, work = self._participants(round_)
        if not self.modals:
            return self._planned(round_, self._rosters(clients, work, round_))
        modals: list[Plan | None] = []
        for alone in self.modals:
            its = np.isin(clients, alone.held.participants)
            share = tuple(w for w, k in zip(work, its, strict=False) if k)
            if its.any():
                rosters = alone._rosters(clients[its], share, round_)
                modals.append(alone._planned(round_, rosters))
            else:
                modals.append(None)
        whole = Roster(torch.from_numpy(clients), self._sizes(clients))
        return replace(self._planned(round_, (whole,)), modals=tuple(modals))

    def _planned(self, round_: int, rosters: tuple[Roster | None, ...]) -> Plan:
        lr = learning_rate(self.training, round_)
        return Plan(round_, rosters, self.arrays, lr, team=self.team, usual=self._usual)

    def _rosters(self, clients: np.ndarray, work: Work, round_: int) -> tuple[Roster | None, ...]:
        """By phase; None for one that is not due."""
        *before, last = self.method.phases
        # These words are keys of random numbers.
        rosters = [
            self._roster(phase, clients, work, round_, f" of exchange {number}")
            if phase.due(round_)
            else None
            for number, phase in enumerate(before)
        ]
        return (*rosters, self._roster(last, clients, work, round_, ""))

    def _roster(
        self, phase: Phase, clients: np.ndarray, work: Work, round_: int, where: str
    ) -> Roster:
        """Who takes part in a phase, and the batches of its passes; every pass draws its own."""
        if phase.everyone:
            clients, work = self.held.participants, ()
        schedules = [
            self._schedule(
                pass_,
                clients,
                work,
                round_,
                f"batches{f' of pass {number}' if number else ''}{where}",
            )
            for number, pass_ in enumerate(phase.passes)
        ]
        return Roster(torch.from_numpy(clients), self._sizes(clients), tuple(schedules))

    def _sizes(self, clients: np.ndarray) -> Tensor:
        """Training samples of some clients."""
        held = [len(self.held.samples["train"][k]) for k in clients]
        return torch.tensor(held, dtype=torch.float64, device=self.arrays.device)

    @cached_property
    def _usual(self) -> np.ndarray:
        held = [len(self.held.samples["train"][k]) for k in self.held.participants]
        return steps_of(np.array(held), self.training)

    def _schedule(
        self, part: Pass | Sweep, clients: np.ndarray, work: Work, round_: int, purpose: str
    ) -> Schedule | None:
        """The batches of one pass; None where it is left out of the round."""
        draws = part if isinstance(part, Sweep) else part.sampling
        if not draws.due(round_):
            return None
        samples = [self.held.of_splits(draws.split, int(k)) for k in clients]
        if isinstance(part, Sweep):
            return sweeping(self._some(samples, clients, part.most, round_, purpose))
        if part.sampling.steps is not None and not part.sampling.steps(round_):
            return None
        by_class = part.sampling.per_class is not None
        return schedule(
            samples,
            clients.tolist(),
            self.training,
            self.seed,
            round_,
            purpose,
            sampling=part.sampling,
            work=work,
            labels=[self._labels(held) for held in samples] if by_class else (),
            classes=self.classes,
            keyed=self.network.random or self.arrays.random,
            refreshes=part.refreshes,
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
            held if len(held) <= most else np.sort(draw.choice(held, most, replace=False))
            for held, draw in zip(samples, draws, strict=True)
        ]

    def _participants(self, round_: int) -> tuple[np.ndarray, Work]:
        """Who takes part, in ascending order, and the share of the work that each does; () if all
        do all of it.
        """
        everybody, training = self.held.participants, self.training
        count = max(1, round(training.participation * len(everybody)))
        draw = rng.generator(self.seed, "participants", round_)
        clients = np.sort(draw.choice(everybody, count, replace=False))
        late = stragglers(clients.tolist(), training, self.seed, round_)
        if training.partial_work == "dropped":
            return np.array([k for k in clients if k not in late]), ()
        return clients, shares(clients.tolist(), late, training, self.seed, round_) if late else ()

    def evaluate(self, state: State, round_: int) -> pd.DataFrame:
        """Rows for every client, see `fl.engine.evaluate.evaluate`."""
        if self.team:
            mine = self._alone(processes.scoring(self.team, self.held))
            tables = self.team.exchanged(mine.evaluate(state, round_))
            modality = self.held.modality if self.modals else None
            return processes.in_order(tables, list(self.method.views), modality)
        if self.modals:
            found = zip(self.method.modals, self.modals, strict=True)
            rows = [own.evaluate(modal.state_of(one, state), round_) for one, own in found]
            return pd.concat(rows, ignore_index=True)
        return self._scored(self.method, state, round_)

    def _alone(self, clients: np.ndarray) -> Simulation:
        """The simulation with the samples of some clients, by this process."""
        modals = tuple(alone._alone(clients) for alone in self.modals)
        held = self.held.of_clients(clients)
        return replace(self, held=held, modals=modals, team=None)

    def _scored(self, method: Method, state: State, round_: int) -> pd.DataFrame:
        return evaluate(
            method,
            self.network,
            state,
            self.arrays,
            self.held,
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
            own = [state.client(k, self.arrays.device) for k in range(self.held.clients)]
            whole = trees.stack([views[PERSONAL](state.server, one) for one in own])
            kept[PERSONAL] = holders.stored(whole, self.method, self.held.modality)
        return kept

    def before(self, weights: Tree) -> pd.DataFrame:
        """Round 0 of a run that starts from a stored model: that model, scored on every client."""
        if self.modals:
            found = zip(self.method.modals, self.modals, strict=True)
            rows = [own.before(one.of(weights)) for one, own in found]
            return pd.concat(rows, ignore_index=True)
        view = Method(
            self.method.init, (), self.method.aggregate, {GLOBAL: lambda server, _: dict(server)}
        )
        state = State(trees.to(weights, self.arrays.device), {})
        return self._scored(view, state, 0)


@dataclass(frozen=True)
class Round:
    """A finished round: its state and its rows (training loss always, scores when evaluated).

    Attributes:
        trouble: What was no longer finite, in words; "" if everything is.
        traces: What the method records of an evaluated round, see `fl.api.method.Method`.
    """

    number: int
    state: State
    rows: pd.DataFrame
    loss: float
    trouble: str
    traces: dict[str, Tensor] = field(default_factory=dict)

    @property
    def diverged(self) -> bool:
        """Whether the run ends here because something is no longer finite."""
        return bool(self.trouble)


def rounds(simulation: Simulation, state: State, done: int, backend: str) -> Iterator[Round]:
    """The rounds after ``done``, one by one; ends early at a loss that is not finite."""
    for finished in lockstep({0: simulation}, {0: state}, done, backend):
        yield finished[0]


Key = TypeVar("Key")


def lockstep(
    simulations: Mapping[Key, Simulation],
    states: Mapping[Key, State],
    done: int,
    backend: str,
) -> Iterator[dict[Key, Round]]:
    """The rounds after ``done`` of several runs that differ in their seed only, trained together.

    A run that diverges leaves the others after that round; ends when none is left.
    """
    total = next(iter(simulations.values())).training.rounds
    running = dict(states)
    for number in range(done + 1, total + 1):
        runs = [simulations[key] for key in running]
        plans = [run.plan(number) for run in runs]
        methods = [run.method for run in runs]
        before = draws.streams()
        run_rounds = modal.run_rounds if methods[0].modals else engine.run_rounds
        results = run_rounds(methods, list(running.values()), plans, backend)
        if draws.drawn_since(before):
            raise FedloomError(
                f"round {number} drew from PyTorch's shared random numbers, so that the run would "
                "not come out again; allowed in a method, a term and a model: numbers by a key of "
                "the batch (fl.pytorch.keyed)"
            )
        finished = {
            key: _finished(run, plan, *result)
            for key, run, plan, result in zip(running, runs, plans, results, strict=True)
        }
        yield finished
        running = {key: one.state for key, one in finished.items() if not one.diverged}
        if not running:
            return


def _finished(simulation: Simulation, plan: Plan, state: State, losses: Tensor) -> Round:
    """A round with its rows, evaluated if it is due."""
    number, training = plan.round, simulation.training
    loss, trouble = float(losses.double().mean()), ""
    traces: dict[str, Tensor] = {}
    rows = _training_rows(simulation.method, plan, losses)
    due = number % training.evaluate_every == 0 or number == training.rounds
    if not math.isfinite(loss):
        clients = plan.clients[~torch.isfinite(losses.cpu())].tolist()
        trouble = f"the training loss of {_named(clients)} was no longer finite in round {number}"
    elif due:
        scores = simulation.evaluate(state, number)
        bad = scores.loc[~np.isfinite(scores["value"]), "client"]
        if len(bad):
            trouble = (
                f"the evaluation of {_named(bad.unique().tolist())} was no longer finite after "
                f"round {number}"
            )
        rows = pd.concat([rows, scores], ignore_index=True)
        method = simulation.method
        if method.trace:
            traces |= trees.to(method.trace(state.server), "cpu")
        if method.trace_clients:
            traces |= trees.to(method.trace_clients(state.clients), "cpu")
    return Round(number, state, rows, loss, trouble, traces)


def _named(clients: list[int]) -> str:
    shown = ", ".join(map(str, clients[:5]))
    more = f" and {len(clients) - 5} more" if len(clients) > 5 else ""
    return f"client{'s' if len(clients) > 1 else ''} {shown}{more}"


def _training_rows(method: Method, plan: Plan, losses: Tensor) -> pd.DataFrame:
    stage = PERSONAL if PERSONAL in method.views else GLOBAL
    found: list[Any] = [
        (plan.round, client, "train", stage, "loss", value, n)
        for client, value, n in zip(
            plan.clients.tolist(), losses.double().tolist(), plan.n.long().tolist(), strict=True
        )
    ]
    return as_rows(found)
