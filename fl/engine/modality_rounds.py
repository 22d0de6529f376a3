"""Rounds of clients that differ in the modality of their input, such as images and texts.

`fl.engine.engine` trains each modality as a separate run: its clients in one stack, with a
network without the weights of other modalities, which its clients neither train nor send. Each
weight is then averaged over the clients that have it. So a shared classifier is averaged over all
clients, and an extractor over the clients of its modality. If modalities share no weight, each may
have its own server (`ModalityMethod`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import Method, WeightedAverage
from fl.api.network import Network
from fl.api.trees import Tree
from fl.base.errors import FedloomError
from fl.engine import engine
from fl.engine.state import (
    HOST,
    UNDIVIDED,
    Division,
    RoundSchedule,
    State,
    returned_states,
)


@dataclass(frozen=True)
class ModalityMethod:
    """Method for the clients of one modality.

    Attributes:
        name: Name of the modality.
        method: The method of its clients.
        missing_weights: Names of the weights that its clients do not have.
        separate: Whether modalities share nothing. Each modality then has its own server tree under
            its ``name``. Otherwise one server averages (`WeightedAverage`) each weight over the
            clients that have it.
    """

    name: str
    method: Method
    missing_weights: frozenset[str]
    separate: bool

    def restrict(self, tree: Tree) -> Tree:
        """Return a tree or stack without the weights that these clients do not have."""
        return trees.drop(tree, self.missing_weights)

    def server_tree(self, server: Tree) -> Tree:
        """Return the part of the run's server tree that these clients share."""
        return dict(server[self.name]) if self.separate else self.restrict(server)


@dataclass(frozen=True)
class ModalitySchedule(RoundSchedule):
    """The schedule of a round of clients that differ in modality.

    Attributes:
        by_modality: The schedule of each modality's participants, which alone has their batches;
            None for a modality without participants.
        methods: The method of each modality.
    """

    by_modality: tuple[RoundSchedule | None, ...] = ()
    methods: tuple[ModalityMethod, ...] = ()


UPLOAD, SAMPLES = "upload", "samples"
"""Keys of the tree that replaces a modality's server tree after its clients' work, if all
modalities have one server: the uploads, or their mean if the server needs only that, and the
numbers of training samples.
"""

RoundResult = tuple[State, Tensor]
"""The state after a round, and the participants' training losses."""


def check_shared_weights(separate: bool, networks: Mapping[str, Network]) -> None:
    """Refuse modalities that share weights, if the method cannot average these.

    Args:
        separate: Whether the method's server does more than average.
        networks: The network of each modality, by name.

    Raises:
        FedloomError: If the method cannot be used.
    """
    shared = frozenset.intersection(*map(weight_names, networks.values()))
    if separate and shared:
        raise FedloomError(
            f"the server does more than average what clients send, but {' and '.join(networks)} "
            f"share the weights {', '.join(sorted(shared))}",
            advice="choose a model whose modalities share no weight, or a method whose server "
            "averages",
        )


def combine_methods(
    method: Method,
    network: Network,
    by_modality: Mapping[str, tuple[Method, Network]],
    separate: bool,
) -> tuple[Method, tuple[ModalityMethod, ...]]:
    """Combine the methods of all modalities to one method.

    Args:
        method: The method for all weights together.
        network: The network with all weights.
        by_modality: The method and the network of each modality, by name.
        separate: See `ModalityMethod`.

    Returns:
        The method, and one for the clients of each modality.

    Raises:
        FedloomError: If modalities share weights that the method cannot average.
    """
    check_shared_weights(separate, {name: net for name, (_, net) in by_modality.items()})
    modalities = tuple(
        ModalityMethod(name, inner, weight_names(network) - weight_names(net), separate)
        for name, (inner, net) in by_modality.items()
    )
    if not separate:
        return method, modalities

    def init(variables: Tree) -> tuple[Tree, Tree]:
        initial = [modality.method.init(modality.restrict(variables)) for modality in modalities]
        servers = {
            modality.name: server for modality, (server, _) in zip(modalities, initial, strict=True)
        }
        return servers, _union(client for _, client in initial)

    def view(stage: str, server: Tree, client: Tree | None) -> Tree:
        return _union(
            modality.method.views[stage](
                server[modality.name], None if client is None else modality.restrict(client)
            )
            for modality in modalities
        )

    def trace(server: Tree) -> dict[str, Tensor]:
        return {
            f"{name} of {modality.name}": leaf
            for modality in modalities
            if modality.method.trace
            for name, leaf in modality.method.trace(server[modality.name]).items()
        }

    views = {
        stage: lambda server, client, stage=stage: view(stage, server, client)
        for stage in method.views
    }
    has_trace = any(modality.method.trace for modality in modalities)
    combined = replace(method, init=init, views=views, trace=trace if has_trace else None)
    return combined, modalities


def _union(by_modality: Iterable[Tree]) -> Tree:
    """Return the leaves of all trees; a leaf of several is that of the last one."""
    return reduce(trees.overlay, by_modality, {})


def weight_names(network: Network) -> frozenset[str]:
    """Return the names of all weights and buffers."""
    return frozenset(name for names in network.names.values() for name in names)


def modality_state(modality: ModalityMethod, state: State) -> State:
    """Return a run's state for one modality: all clients, without the weights that it lacks."""
    return State(
        modality.server_tree(state.server), state.client_states.drop(modality.missing_weights)
    )


def run_rounds(
    methods: Sequence[Method],
    states: Sequence[State],
    schedules: Sequence[RoundSchedule],
    backend: str,
    division: Division = UNDIVIDED,
) -> list[RoundResult]:
    """Run one round of several runs, one modality after another; see `engine.run_rounds`.

    Args:
        methods: The method of each run.
        states: The state of each run before the round.
        schedules: The `ModalitySchedule` of each run.
        backend: Name of the backend.
        division: How the work is divided.

    Returns:
        For each run the state after the round, and the participants' mean training losses.
    """
    plans = [schedule for schedule in schedules if isinstance(schedule, ModalitySchedule)]
    results: list[list[ModalityResult]] = [[] for _ in states]
    for number in range(len(plans[0].methods)):
        active = [
            (run, plan.methods[number], schedule)
            for run, plan in enumerate(plans)
            if (schedule := plan.by_modality[number]) is not None
        ]
        if active:
            trained = engine.run_rounds(
                [_of_one_modality(modality) for _, modality, _ in active],
                [modality_state(modality, states[run]) for run, modality, _ in active],
                [schedule for *_, schedule in active],
                backend,
                division,
            )
            for (run, modality, schedule), result in zip(active, trained, strict=True):
                results[run].append((modality, schedule, result))
    return [_combine(*run) for run in zip(methods, states, schedules, results, strict=True)]


ModalityResult = tuple[ModalityMethod, RoundSchedule, RoundResult]


def _of_one_modality(modality: ModalityMethod) -> Method:
    """Return the method by which one modality is trained; a common server comes afterwards."""
    return modality.method if modality.separate else _with_collecting_server(modality.method)


def _with_collecting_server(method: Method) -> Method:
    """Return the method with a server that only collects uploads."""

    def collect_mean(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
        return {UPLOAD: trees.mean(uploads, n), SAMPLES: n.sum()}, dict(clients)

    def collect(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
        return {UPLOAD: uploads, SAMPLES: n}, dict(clients)

    averaging = isinstance(method.aggregate, WeightedAverage)
    return replace(method, aggregate=WeightedAverage(collect_mean) if averaging else collect)


def _combine(
    method: Method, state: State, schedule: RoundSchedule, results: Sequence[ModalityResult]
) -> RoundResult:
    """Return a run's state after all of its modalities, and losses in the order of clients."""
    server: Tree = state.server
    states = state.client_states
    positions, losses = [], []
    for modality, modality_schedule, (new_state, loss) in results:
        clients = modality_schedule.clients
        rows = new_state.client_states.take(clients)
        states = states.replace_clients(clients, trees.overlay(states.take(clients), rows))
        if modality.separate:
            server = {**server, modality.name: new_state.server}
        positions.append((clients[:, None] == schedule.clients).nonzero()[:, 1])
        losses.append(loss)
    if not results[0][0].separate:
        collected = [new_state.server for _, _, (new_state, _) in results]
        if isinstance(method.aggregate, WeightedAverage):
            n = torch.stack([upload[SAMPLES] for upload in collected])
            mean = _mean_over_holders(
                [upload[UPLOAD] for upload in collected], list(n), state.server
            )
            uploads: Tree = trees.apply(lambda leaf: leaf[None], mean)
            weights = n.sum(0, keepdim=True)
        else:
            uploads = _stack_uploads([upload[UPLOAD] for upload in collected], positions)
            weights = schedule.weights(schedule.n)
        participants: Tree = trees.to(states.take(schedule.clients), weights.device)
        returned = method.aggregate(state.server, participants, uploads, weights)
        server, participants = returned_states("aggregate", returned)
        states = states.replace_clients(schedule.clients, trees.to(participants, HOST))
    order = torch.cat(positions).argsort().to(losses[0].device)
    return State(server, states), torch.cat(losses)[order]


def _mean_over_holders(
    mean_uploads: Sequence[Tree], samples: Sequence[Tensor], server: Tree
) -> Tree:
    """Average each leaf over the modalities that have it, weighted by their samples.

    Args:
        mean_uploads: The mean upload of each modality.
        samples: Number of training samples of each modality.
        server: The server's tree; a leaf without participating holders is taken from it.
    """
    averages: dict[str, Any] = {}
    keys = dict.fromkeys(key for tree in mean_uploads for key in tree)
    for key in keys:
        pairs = [
            (tree[key], n) for tree, n in zip(mean_uploads, samples, strict=True) if key in tree
        ]
        leaves, weights = [leaf for leaf, _ in pairs], torch.stack([n for _, n in pairs])
        if isinstance(leaves[0], Mapping):
            server_leaf: Tree = server.get(key, {})
            averages[key] = {
                **server_leaf,
                **_mean_over_holders(leaves, list(weights), server_leaf),
            }
        else:
            averages[key] = trees.mean({"": torch.stack(leaves)}, weights)[""]
    return averages


def _stack_uploads(uploads: Sequence[Tree], positions: Sequence[Tensor]) -> Tree:
    """Stack the uploads of all modalities in the order of clients, with zeros for missing weights.

    Args:
        uploads: The uploads of each modality, stacked.
        positions: Positions of each modality's clients among the participants.

    Returns:
        A stack, [participants, ...].
    """
    template = _union(uploads)

    def fill(upload: Tree, clients: int) -> Tree:
        zeros = trees.apply(lambda leaf: leaf.new_zeros(clients, *leaf.shape[1:]), template)
        return trees.overlay(zeros, upload)

    stack = trees.concatenate(list(map(fill, uploads, map(len, positions))))
    order = torch.cat(list(positions)).argsort()
    return trees.take(stack, order.to(trees.leaves(stack)[0].device))


ChangeLeaf = Callable[[Tensor, Tensor], Tensor]
"""Function of a leaf and the clients that have it, in ascending order."""


def drop_missing_rows(
    clients: Tree, modalities: Sequence[ModalityMethod], modality: np.ndarray
) -> Tree:
    """Drop from each leaf of a stack the rows of clients that do not have it.

    Args:
        clients: A stack of all clients.
        modalities: The methods of all modalities, with the weights that their clients lack.
        modality: Modality of every client, [clients].

    Returns:
        A tree whose leaves have the rows of different clients, in the order of clients.
    """
    return _change_leaves(clients, modalities, modality, lambda leaf, rows: leaf[rows])


def zero_missing_weights(
    state: State, modalities: Sequence[ModalityMethod], modality: np.ndarray
) -> State:
    """Set the weights that clients do not have to zero.

    Args:
        state: The state of a run.
        modalities: The methods of all modalities, with the weights that their clients lack.
        modality: Modality of every client, [clients].

    Returns:
        The changed state.
    """

    def zero_missing_rows(leaf: Tensor, rows: Tensor) -> Tensor:
        return torch.zeros_like(leaf).index_copy_(0, rows, leaf[rows])

    clients = _change_leaves(state.clients, modalities, modality, zero_missing_rows)
    return State(state.server, clients)


def _change_leaves(
    clients: Tree, modalities: Sequence[ModalityMethod], modality: np.ndarray, change: ChangeLeaf
) -> Tree:
    """Change each leaf of a stack that some clients do not have."""
    missing_names = [method.missing_weights for method in modalities]

    def change_tree(tree: Tree, holders: Tensor | None) -> Tree:
        """Change a tree; ``holders`` are the clients that have it if a key above decides that."""
        changed: dict[str, Any] = {}
        for key, leaf in tree.items():
            rows = holders
            if rows is None and any(key in names for names in missing_names):
                groups_without = [n for n, names in enumerate(missing_names) if key in names]
                rows = torch.from_numpy(np.flatnonzero(~np.isin(modality, groups_without)))
            if isinstance(leaf, Mapping):
                changed[key] = change_tree(leaf, rows)
            else:
                changed[key] = leaf if rows is None else change(leaf, rows)
        return changed

    return change_tree(clients, None)
