"""The schedules of rounds: participants, stragglers and batches, drawn by the seed of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fl.api.method import Method, Pass, Phase, Sweep
from fl.base import rng
from fl.engine.batches import (
    Schedule,
    balanced_class_weights,
    count_steps,
    draw_stragglers,
    draw_work_shares,
    schedule,
    sweep_schedule,
)
from fl.engine.run_setup import RunSetup
from fl.engine.state import PhaseSchedule, RoundSchedule

WorkShares = Sequence[Fraction]
"""Share of its work that each participant does; empty if all do all of it."""


@dataclass(frozen=True)
class Scheduler:
    """Draws the schedules of a run's rounds.

    Attributes:
        setup: Data and settings of the run.
        method: Its method.
        seed: Its seed.
    """

    setup: RunSetup
    method: Method
    seed: int

    def participants(self, round_: int) -> tuple[np.ndarray, WorkShares]:
        """Draw the participants of a round, in ascending order, and their shares of work."""
        candidates, training = self.setup.client_data.participants, self.setup.training
        count = training.participants(len(candidates))
        generator = rng.generator(self.seed, "participants", round_)
        clients = np.sort(generator.choice(candidates, count, replace=False))
        return self.with_stragglers(clients, round_)

    def with_stragglers(self, clients: np.ndarray, round_: int) -> tuple[np.ndarray, WorkShares]:
        """Draw which of a round's clients do a part of their work, or none; see `participants`."""
        training = self.setup.training
        stragglers = draw_stragglers(clients.tolist(), training, self.seed, round_)
        if training.partial_work == "dropped":
            return np.array([k for k in clients if k not in stragglers]), ()
        if not stragglers:
            return clients, ()
        shares = draw_work_shares(clients.tolist(), stragglers, training, self.seed, round_)
        return clients, shares

    def round_schedule(self, round_: int, clients: np.ndarray, work: WorkShares) -> RoundSchedule:
        """Draw the batches of a round's participants in all phases."""
        return self.with_phases(round_, self._phases(clients, work, round_))

    def with_phases(self, round_: int, phases: tuple[PhaseSchedule | None, ...]) -> RoundSchedule:
        """Return the schedule of a round with the given schedules of its phases."""
        return RoundSchedule(
            round_,
            phases,
            self.setup.arrays.whole,
            self.setup.training,
            steps_by_participant=self._steps_by_participant,
        )

    def sizes(self, clients: np.ndarray) -> Tensor:
        """Return the numbers of training samples of some clients, on the device."""
        sizes = torch.from_numpy(self.setup.client_data.sizes("train")[clients])
        return sizes.to(self.setup.arrays.device, torch.float64)

    def _phases(
        self, clients: np.ndarray, work: WorkShares, round_: int
    ) -> tuple[PhaseSchedule | None, ...]:
        """Return the schedule of each phase; None for a phase that the round leaves out."""
        *earlier_phases, last = self.method.phases
        # These words are keys of random numbers.
        earlier = [
            self._phase(phase, clients, work, round_, f" of exchange {number}")
            if phase.is_active(round_)
            else None
            for number, phase in enumerate(earlier_phases)
        ]
        return (*earlier, self._phase(last, clients, work, round_, ""))

    def _phase(
        self, phase: Phase, clients: np.ndarray, work: WorkShares, round_: int, suffix: str
    ) -> PhaseSchedule:
        """Return the participants of a phase; every pass draws its own batches."""
        if phase.all_clients:
            clients, work = self.setup.client_data.participants, ()
        schedules = (
            self._schedule(
                pass_,
                clients,
                work,
                round_,
                f"batches{f' of pass {number}' if number else ''}{suffix}",
            )
            for number, pass_ in enumerate(phase.passes)
        )
        begin = self.setup.arrays.begin
        in_whole = tuple(schedule and schedule.shift(begin) for schedule in schedules)
        return PhaseSchedule(torch.from_numpy(clients), self.sizes(clients), in_whole)

    @cached_property
    def _steps_by_participant(self) -> np.ndarray:
        sizes = self.setup.client_data.sizes("train")[self.setup.client_data.participants]
        return count_steps(sizes, self.setup.training)

    @cached_property
    def _class_weights(self) -> np.ndarray | None:
        """Class weights of all clients, see `fl.engine.batches.Schedule`."""
        if self.setup.training.class_weights == "none":
            return None
        return balanced_class_weights(self.setup.class_counts().numpy())

    def _schedule(
        self, pass_: Pass | Sweep, clients: np.ndarray, work: WorkShares, round_: int, purpose: str
    ) -> Schedule | None:
        """Draw the batches of one pass; None if the round leaves it out."""
        sampling = pass_ if isinstance(pass_, Sweep) else pass_.sampling
        if not sampling.is_active(round_):
            return None
        samples = [self.setup.client_data.samples_of(sampling.split, int(k)) for k in clients]
        if isinstance(pass_, Sweep):
            limit = pass_.max_samples
            return sweep_schedule(self._limit(samples, clients, limit, round_, purpose))
        if pass_.sampling.steps is not None and not pass_.sampling.steps(round_):
            return None
        by_class = pass_.sampling.per_class is not None
        return schedule(
            samples,
            clients.tolist(),
            self.setup.training,
            self.seed,
            round_,
            purpose,
            sampling=pass_.sampling,
            work=work,
            labels=[self.setup.arrays.labels_of(numbers) for numbers in samples]
            if by_class
            else (),
            classes=self.setup.classes,
            keyed=self.setup.network.random or self.setup.arrays.random,
            refreshes=pass_.refreshes,
            class_weights=None if self._class_weights is None else self._class_weights[clients],
        )

    def _limit(
        self,
        samples: list[np.ndarray],
        clients: np.ndarray,
        limit: int | None,
        round_: int,
        purpose: str,
    ) -> list[np.ndarray]:
        """Draw at most ``limit`` of each client's samples, in their order; None: all."""
        if limit is None:
            return samples
        generators = (rng.generator(self.seed, purpose, int(k), round_) for k in clients)
        return [
            numbers
            if len(numbers) <= limit
            else np.sort(generator.choice(numbers, limit, replace=False))
            for numbers, generator in zip(samples, generators, strict=True)
        ]
