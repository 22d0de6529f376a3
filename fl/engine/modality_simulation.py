"""A run whose clients differ in the modality of their inputs, such as images and texts.

It holds a run for each modality, with a network of its own, and one with all weights. Rounds are
those of `fl.engine.modality_rounds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fl.api.method import MODALITY, Method, declaration_of
from fl.api.task import Task
from fl.api.training import Training
from fl.api.trees import Tree
from fl.base.schema import PERSONAL
from fl.data.dataset import Modality, group_title, modality_groups
from fl.engine import modality_rounds
from fl.engine.client_data import ClientData
from fl.engine.modality_rounds import ModalityMethod, ModalitySchedule, weight_names
from fl.engine.run_setup import MethodComponents, RunSetup, build
from fl.engine.simulation import Simulation
from fl.engine.state import UNDIVIDED, Division, PhaseSchedule, RoundSchedule, State


@dataclass(frozen=True)
class ModalitySimulation:
    """A run of several networks, see `fl.engine.simulation.Trainable`.

    Attributes:
        joint: The run of the network with all weights and of all clients; it is not trained.
        modality: Modality of every client, int64 [clients].
        by_modality: The run of each modality.
        modality_methods: The method for the clients of each modality.
    """

    joint: Simulation
    modality: np.ndarray
    by_modality: tuple[Simulation, ...]
    modality_methods: tuple[ModalityMethod, ...]

    @classmethod
    def of(
        cls,
        components: MethodComponents,
        setup: RunSetup,
        seed: int,
        modality: np.ndarray,
        by_modality: tuple[Simulation, ...],
    ) -> ModalitySimulation:
        """Make the run of all modalities.

        Args:
            components: The method and its additions.
            setup: The network with all weights, the samples of the first modality, and all clients.
            seed: Seed of the run.
            modality: Modality of every client, int64 [clients].
            by_modality: The run of each modality.
        """
        network = setup.network
        # The server trains in the run of each modality.
        missing = tuple(weight_names(network) - weight_names(run.network) for run in by_modality)
        method = build(components, replace(setup.context(seed), missing_weights=missing))
        names = map(group_title, groups_of(setup.modalities, modality))
        runs = dict(zip(names, ((run.method, run.network) for run in by_modality), strict=True))
        separate = not declaration_of(components.method).modalities
        method, methods = modality_rounds.combine_methods(method, network, runs, separate)
        joint = Simulation(**setup.values(), method=method, seed=seed)
        return cls(joint, modality, by_modality, methods)

    @property
    def method(self) -> Method:
        """The method of all modalities together."""
        return self.joint.method

    @property
    def training(self) -> Training:
        """Settings of training."""
        return self.joint.training

    @property
    def task(self) -> Task:
        """Type of the labels."""
        return self.joint.task

    @property
    def client_data(self) -> ClientData:
        """The samples of all clients."""
        return self.joint.client_data

    @property
    def device(self) -> torch.device:
        """The device on which the run is trained."""
        return self.joint.device

    def subruns(self, state: State) -> list[tuple[Simulation, State]]:
        """Return the run of each modality with its state."""
        methods = self.modality_methods
        states = [modality_rounds.modality_state(method, state) for method in methods]
        return list(zip(self.by_modality, states, strict=True))

    def begin(self, weights: Tree | None = None) -> State:
        """Return the state before round 1; weights that a client does not have are zero."""
        state = self.joint.begin(weights, {MODALITY: torch.from_numpy(self.modality)})
        return modality_rounds.zero_missing_weights(state, self.modality_methods, self.modality)

    def round_schedule(self, round_: int, state: State | None = None) -> ModalitySchedule:
        """Return the participants and batches of a round, 1, 2, ..., R."""
        scheduler = self.joint.scheduler
        clients, work = scheduler.participants(round_)
        by_modality: list[RoundSchedule | None] = []
        for run in self.by_modality:
            is_member = np.isin(clients, run.client_data.participants)
            # Without stragglers, nobody has a share.
            shares = zip(work, is_member, strict=True) if work else ()
            member_work = tuple(share for share, is_one in shares if is_one)
            by_modality.append(
                run.scheduler.round_schedule(round_, clients[is_member], member_work)
                if is_member.any()
                else None
            )
        phase = PhaseSchedule(torch.from_numpy(clients), scheduler.sizes(clients))
        schedule = scheduler.with_phases(round_, (phase,))
        return ModalitySchedule(
            **vars(schedule), by_modality=tuple(by_modality), methods=self.modality_methods
        )

    @property
    def usual_participants(self) -> int:
        """Number of clients of a round."""
        return len(self.round_schedule(1).clients)

    def finish_round(self, schedule: RoundSchedule, state: State, losses: Tensor) -> State:
        """Return the state after a round; participation follows from the seed."""
        return state

    run_rounds = staticmethod(modality_rounds.run_rounds)

    def evaluate(self, state: State, round_: int, division: Division = UNDIVIDED) -> pd.DataFrame:
        """Return metrics of every evaluated client, modality by modality; see `Simulation`."""
        return _join(
            [
                run.score(data, run_state, round_, division)
                for (run, run_state), data in zip(
                    self.subruns(state), self._evaluated_data, strict=True
                )
            ]
        )

    def evaluate_start(self, weights: Tree) -> pd.DataFrame:
        """Score a stored model on every evaluated client, see `Simulation.evaluate_start`."""
        methods, evaluated = self.modality_methods, self._evaluated_data
        return _join(
            [
                run.score_model(data, method.restrict(weights))
                for run, method, data in zip(self.by_modality, methods, evaluated, strict=True)
            ]
        )

    @cached_property
    def _evaluated_data(self) -> list[ClientData]:
        """The samples of the evaluated clients of each modality."""
        data = self.joint.evaluated_data
        return [
            data.select_clients(np.flatnonzero(self.modality == number))
            for number in range(len(self.by_modality))
        ]

    def final_weights(self, state: State) -> dict[str, Tree]:
        """Return the weights to store; each has the rows of the clients that have it."""
        weights = self.joint.final_weights(state)
        if PERSONAL in weights:
            weights[PERSONAL] = modality_rounds.drop_missing_rows(
                weights[PERSONAL], self.modality_methods, self.modality
            )
        return weights


def groups_of(modalities: Sequence[Modality], modality: np.ndarray) -> list[tuple[Modality, ...]]:
    """Return the modalities that each group of clients has.

    Args:
        modalities: The inputs of the data set.
        modality: Number of the group of every client, int64 [clients].
    """
    return modality_groups(modalities, int(modality.max()) + 1)


def _join(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(tables, ignore_index=True)
