"""Extra: runs whose clients differ in the modality of their inputs, such as images and texts.

A run has a network for each modality, and one with all weights. Rounds are those of
`fl.extra.modality_rounds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from fl.api.method import MODALITY, Method, declaration_of
from fl.api.trees import Tree
from fl.base import registry
from fl.base.errors import ConfigError, FedloomError
from fl.base.schema import PERSONAL
from fl.data import partition_table
from fl.data.dataset import (
    Modality,
    accepts_modalities,
    group_title,
    modalities_of,
    modality_groups,
)
from fl.engine.assembly import ArrayReader, Assembly, make_network
from fl.engine.run_basis import MethodComponents, RunBasis, build
from fl.engine.sample_arrays import Arrays
from fl.engine.simulation import Simulation
from fl.engine.state import Roster, RoundSchedule, State, Team
from fl.extra import modality_rounds
from fl.extra.modality_rounds import ModalityMethod, ModalitySchedule, weight_names
from fl.plan.components import Inputs
from fl.plan.expand import ExpandedScenario, Findings
from fl.plan.scenario import Scenario


@dataclass(frozen=True, kw_only=True)
class ModalitySimulation(Simulation):
    """A run whose clients differ in modality.

    Attributes:
        modality: Modality of every client, int64 [clients].
        by_modality: The run of each modality.
        modality_methods: The method for the clients of each modality.
    """

    modality: np.ndarray
    by_modality: tuple[Simulation, ...]
    modality_methods: tuple[ModalityMethod, ...]

    @classmethod
    def combined(
        cls,
        components: MethodComponents,
        basis: RunBasis,
        seed: int,
        modality: np.ndarray,
        by_modality: tuple[Simulation, ...],
    ) -> ModalitySimulation:
        """Combine the runs of all modalities.

        Args:
            components: The method and its additions.
            basis: The network with all weights, the samples of the first modality, and all clients.
            seed: Seed of the run.
            modality: Modality of every client, int64 [clients].
            by_modality: The run of each modality.
        """
        network = basis.network
        # The server trains in the run of each modality.
        missing = tuple(weight_names(network) - weight_names(run.network) for run in by_modality)
        method = build(components, replace(basis.context(seed), missing_weights=missing))
        names = map(group_title, _groups(basis.modalities, modality))
        runs = dict(zip(names, ((run.method, run.network) for run in by_modality), strict=True))
        separate = not declaration_of(components.method).modalities
        method, methods = modality_rounds.combine_methods(method, network, runs, separate)
        return cls(
            **basis.values(),
            method=method,
            seed=seed,
            modality=modality,
            by_modality=by_modality,
            modality_methods=methods,
        )

    def with_method(self, components: MethodComponents, seed: int) -> Simulation:
        """Make the simulation of another run on the same data, with its own method and seed."""
        by_modality = tuple(run.with_method(components, seed) for run in self.by_modality)
        return self.combined(components, self, seed, self.modality, by_modality)

    def with_team(self, team: Team) -> Simulation:
        """Return the simulation with processes that share its work."""
        by_modality = tuple(run.with_team(team) for run in self.by_modality)
        return replace(self, team=team, by_modality=by_modality)

    def select_clients(self, clients: np.ndarray) -> Simulation:
        """Return the simulation with the samples of some clients, computed by this process."""
        by_modality = tuple(run.select_clients(clients) for run in self.by_modality)
        data = self.client_data.select_clients(clients)
        return replace(self, client_data=data, by_modality=by_modality, team=None)

    @property
    def is_composed(self) -> bool:
        """Whether clients have different networks."""
        return True

    @property
    def methods(self) -> list[Method]:
        """The method, and that of each modality."""
        return [self.method, *(modality.method for modality in self.modality_methods)]

    @property
    def client_facts(self) -> dict[str, Tensor]:
        """The modality of every client."""
        return {MODALITY: torch.from_numpy(self.modality)}

    @property
    def groups(self) -> np.ndarray | None:
        """The modality of every client."""
        return self.modality

    def subruns(self, state: State) -> list[tuple[Simulation, State]]:
        """Return the run of each modality with its state."""
        methods = self.modality_methods
        states = [modality_rounds.modality_state(method, state) for method in methods]
        return list(zip(self.by_modality, states, strict=True))

    def start_subruns(self, weights: Tree) -> list[tuple[Simulation, Tree]]:
        """Return the run of each modality with its variables of a stored model."""
        restricted = [modality.restrict(weights) for modality in self.modality_methods]
        return list(zip(self.by_modality, restricted, strict=True))

    def begin(self, weights: Tree | None = None) -> State:
        """Return the state before round 1; weights that a client does not have are zero."""
        state = super().begin(weights)
        return modality_rounds.zero_missing_weights(state, self.modality_methods, self.modality)

    def round_schedule(self, round_: int) -> ModalitySchedule:
        """Return the participants and batches of a round, 1, 2, ..., R."""
        clients, work = self.scheduler.participants(round_)
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
        roster = Roster(torch.from_numpy(clients), self.scheduler.sizes(clients))
        schedule = self.scheduler.without_batches(round_, (roster,))
        return ModalitySchedule(**vars(schedule), by_modality=tuple(by_modality))

    @staticmethod
    def run_rounds(
        runs: Sequence[Simulation],
        states: Sequence[State],
        schedules: Sequence[RoundSchedule],
        backend: str,
    ) -> list[tuple[State, Tensor]]:
        """Run one round of several runs, one modality after another."""
        return modality_rounds.run_rounds(
            [run.method for run in runs],
            [cast("ModalitySimulation", run).modality_methods for run in runs],
            states,
            cast("Sequence[ModalitySchedule]", schedules),
            backend,
        )

    def final_weights(self, state: State) -> dict[str, Tree]:
        """Return the weights to store; each has the rows of the clients that have it."""
        weights = super().final_weights(state)
        if PERSONAL in weights:
            weights[PERSONAL] = modality_rounds.drop_missing_rows(
                weights[PERSONAL], self.modality_methods, self.modality
            )
        return weights


def _groups(modalities: Sequence[Modality], modality: np.ndarray) -> list[tuple[Modality, ...]]:
    """Return the modalities that each group of clients has."""
    return modality_groups(modalities, int(modality.max()) + 1)


def assemble_modalities(assembly: Assembly) -> Simulation | None:
    """Make the simulation of a run whose clients differ in modality; None for other runs.

    Joins `fl.engine.assembly.ASSEMBLERS`.

    Raises:
        FedloomError: If clients are to train on some of their samples, or on virtual images.
    """
    if partition_table.MODALITY not in assembly.table:
        return None
    if assembly.spec.get("train_on") is not None:
        raise FedloomError(
            "train_on: is set, but clients differ in the modality of their inputs",
            advice="remove train_on, or choose a partition in which all clients have the same "
            "inputs",
        )
    data, components = assembly.data, assembly.components
    by_client = assembly.table.groupby("client")[partition_table.MODALITY].first()
    modality = by_client.to_numpy(np.int64)

    def group_module(group: Sequence[Modality]) -> nn.Module:
        model = assembly.module(assembly.shapes)
        module: nn.Module = model if len(group) > 1 else model.for_modality(group[0].name)
        return module

    by_modality = tuple(
        assembly.simulation(
            partial(group_module, group),
            _group_inputs(assembly.reader, group),
            data.select_clients(np.flatnonzero(modality == number)),
        )
        for number, group in enumerate(_groups(components.modalities, modality))
    )
    network = make_network(lambda: assembly.module(assembly.shapes), assembly.reader.training)
    # No input passes through the whole network, so its last linear layers are not found that way.
    network.head = frozenset().union(*(run.network.head for run in by_modality))
    basis = assembly.basis(network, by_modality[0].arrays, data)
    return ModalitySimulation.combined(
        components.method, basis, assembly.spec["seed"], modality, by_modality
    )


def _group_inputs(reader: ArrayReader, group: Sequence[Modality]) -> Arrays:
    """Return one of the inputs, or several as one."""
    if len(group) > 1:
        return reader.all_inputs(group)
    augmentation = "none" if group[0].tokens else reader.training.augmentation
    return reader.arrays(group[0].array, augmentation)


def client_inputs(scenario: Scenario) -> list[Inputs]:
    """Return the inputs of each modality, where clients differ in it.

    Joins `fl.plan.scenario.CLIENT_INPUTS`.

    Raises:
        ConfigError: If the model takes one kind of input, or numbers of clients do not fit.
    """
    modalities, target = modalities_of(scenario.dataset.instance), scenario.model.component.target
    names = [modality.name for modality in modalities]
    counts = _clients_by_modality(scenario, names)
    if counts is None:
        return []
    if not accepts_modalities(target, modalities):
        first, last = counts[0], counts[0] + counts[1] - 1
        problem = f"{scenario.model.text} takes one kind of input, but clients {first} to {last} "
        problem += f"of {scenario.scheme.text} have {names[1]}, where others have {names[0]}"
        suitable = [
            model.name
            for model in registry.components("model")
            if accepts_modalities(model.target, modalities)
        ]
        allowed = ", ".join(suitable) or f"one for {', '.join(names)}"
        raise ConfigError(scenario.model.location, problem, allowed)
    classes = scenario.dataset.instance.classes
    separate = [Inputs(m.name, m.shape, classes, m.tokens) for m in modalities]
    joint = Inputs(group_title(modalities), (), classes, 0, modalities)
    return separate if len(counts) == len(names) else [*separate, joint]


def _clients_by_modality(scenario: Scenario, names: list[str]) -> list[int] | None:
    """Return the number of clients of each modality; None if the partition names none."""
    scheme = scenario.scheme.values
    counts, location = scheme.get("modalities"), scenario.scheme.location / "modalities"
    table = scenario.partition.own_table
    if table is not None:
        location = scenario.scheme.location / "path"
        if partition_table.MODALITY in table:
            counts = np.bincount(table.groupby("client")[partition_table.MODALITY].first()).tolist()
    if counts is None:
        return None
    problem, all_names = f"is {list(counts)}", " and ".join(names)
    groups = [*names, all_names][: len(counts)]
    if len(names) < 2:
        problem += f", but {scenario.dataset.text} has one kind of input"
        raise ConfigError(location, problem, "none")
    if len(counts) not in (len(names), len(names) + 1):
        allowed = f"{len(names)} numbers of clients, for {all_names}, and one more for all of "
        raise ConfigError(location, problem, allowed + "them at once")
    for name, count in zip(groups, counts, strict=True):
        if not count:
            allowed = f"1 or more for {', '.join(groups)} each"
            raise ConfigError(location, f"{problem}: no client has {name}", allowed)
    clients = scheme.get("clients", sum(counts))
    if sum(counts) != clients:
        problem += f", {sum(counts)} clients"
        raise ConfigError(location, problem, f"{clients} together")
    return list(counts)


def check_modalities(expanded: ExpandedScenario, findings: Findings) -> None:
    """Collect entries and analyses that cannot work if clients differ in modality.

    Joins `fl.plan.expand.SCENARIO_CHECKS`.
    """
    for entry in expanded.right_entries:
        train_on = entry.raw_value("train_on")
        if train_on is not None and len(expanded.scenarios[entry.label].inputs) > 1:
            problem = f"is {train_on!r}, but clients differ in modality"
            advice = "a partition without `modalities`, or no `train_on`"
            expanded.problems.errors.append(entry.error("train_on", problem, advice=advice))
    for analysis in expanded.analyses:
        target = analysis.component.target
        needs_one = any(getattr(target, n, False) for n in ("weights", "one_modality"))
        if needs_one and any(len(scenario.inputs) > 1 for scenario in expanded.distinct):
            problem = f"{analysis.component.name} needs clients of one modality, but they have "
            advice = "a partition without `modalities`"
            error = ConfigError(analysis.location, problem + "several", advice=advice)
            expanded.problems.errors.append(error)
