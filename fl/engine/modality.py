"""Rounds of clients that differ in the kind of their input: images here, texts there.

Each modality is trained as a run of its own by `fl.engine.engine`: its clients in one stack,
with a network without the weights of the others, which its clients neither train nor send. The
results are averaged weight by weight over the clients that hold the weight. So a shared classifier
is averaged over all clients, and an extractor over those of its modality. Where modalities share no
weight, each may have a server of its own (`fl.api.method.ModalityMethod`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import Method, ModalityMethod, WeightedAverage
from fl.api.network import Network
from fl.api.trees import Tree
from fl.base.errors import FedloomError
from fl.engine import engine
from fl.engine.state import HOST, RoundPlan, State

UPLOAD, SAMPLES = "upload", "samples"
"""What takes the place of a modality's server after its clients' work, where there is one server:
what they sent, or its mean where that is all that the server asks for, and over how many training
samples.
"""

Done = tuple[State, Tensor]


def check(separate: bool, networks: Mapping[str, Network]) -> None:
    """Refuse (`FedloomError`) modalities that share weights under a method that cannot share them.

    Args:
        separate: Whether the method's server does more than average.
        networks: Of each modality, by name.
    """
    common = frozenset.intersection(*map(weights, networks.values()))
    if separate and common:
        raise FedloomError(
            f"the server does more than average what is sent, but {' and '.join(networks)} "
            f"have {', '.join(sorted(common))} in common. Allowed: a model whose modalities have "
            "no weight in common"
        )


def several(
    whole: Method, network: Network, alone: Mapping[str, tuple[Method, Network]], separate: bool
) -> Method:
    """One method made of those for each modality.

    Args:
        whole, network: The method and the network for all weights together.
        alone: By modality, its method and its network.
        separate: See `ModalityMethod`.
    """
    check(separate, {name: its for name, (_, its) in alone.items()})
    by_modality = tuple(
        ModalityMethod(name, method, weights(network) - weights(its), separate)
        for name, (method, its) in alone.items()
    )
    if not separate:
        return replace(whole, by_modality=by_modality)

    def init(variables: Tree) -> tuple[Tree, Tree]:
        begun = [modality.method.init(modality.restrict(variables)) for modality in by_modality]
        servers = {
            modality.name: server for modality, (server, _) in zip(by_modality, begun, strict=True)
        }
        client: dict[str, Any] = {}
        for _, its in begun:
            client = trees.overlay(client, its)
        return servers, client

    def view(stage: str, server: Tree, client: Tree | None) -> Tree:
        joined: dict[str, Any] = {}
        for modality in by_modality:
            its = None if client is None else modality.restrict(client)
            joined = trees.overlay(joined, modality.method.views[stage](server[modality.name], its))
        return joined

    def trace(server: Tree) -> dict[str, Tensor]:
        return {
            f"{name} of {modality.name}": leaf
            for modality in by_modality
            if modality.method.trace
            for name, leaf in modality.method.trace(server[modality.name]).items()
        }

    views = {
        stage: lambda server, client, stage=stage: view(stage, server, client)
        for stage in whole.views
    }
    traced = trace if any(modality.method.trace for modality in by_modality) else None
    return replace(whole, init=init, views=views, trace=traced, by_modality=by_modality)


def weights(network: Network) -> frozenset[str]:
    """The names of all weights and buffers."""
    return frozenset(name for kind in network.names.values() for name in kind)


def state_of(modal: ModalityMethod, state: State) -> State:
    """A run's state as one modality sees it: all clients, without the weights that it lacks."""
    return State(
        modal.server_tree(state.server), state.client_states.without(modal.missing_weights)
    )


def run_rounds(
    methods: Sequence[Method], states: Sequence[State], plans: Sequence[RoundPlan], backend: str
) -> list[Done]:
    """`fl.engine.engine.run_rounds`, modality by modality."""
    done: list[list[tuple[ModalityMethod, RoundPlan, Done]]] = [[] for _ in states]
    for number in range(len(methods[0].by_modality)):
        taking = _taking(methods, plans, number)
        if taking:
            results = _trained(taking, states, backend)
            for (run, modal, plan), result in zip(taking, results, strict=True):
                done[run].append((modal, plan, result))
    return [_together(*run) for run in zip(methods, states, plans, done, strict=True)]


Taking = Sequence[tuple[int, ModalityMethod, RoundPlan]]
"""The runs in which clients of a modality take part: their numbers, and what those clients do."""


def _taking(methods: Sequence[Method], plans: Sequence[RoundPlan], number: int) -> Taking:
    return [
        (run, method.by_modality[number], its)
        for run, (method, plan) in enumerate(zip(methods, plans, strict=True))
        if (its := plan.by_modality[number]) is not None
    ]


def _trained(taking: Taking, states: Sequence[State], backend: str) -> list[Done]:
    """The rounds of a modality."""
    return engine.run_rounds(
        [modal.method if modal.separate else _collecting(modal.method) for _, modal, _ in taking],
        [state_of(modal, states[run]) for run, modal, _ in taking],
        [plan for *_, plan in taking],
        backend,
    )


def _collecting(method: Method) -> Method:
    """The method with a server that only keeps what was sent."""

    def mean(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
        return {UPLOAD: trees.mean(uploads, n), SAMPLES: n.sum()}, dict(clients)

    def all_(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
        return {UPLOAD: uploads, SAMPLES: n}, dict(clients)

    averaging = isinstance(method.aggregate, WeightedAverage)
    return replace(method, aggregate=WeightedAverage(mean) if averaging else all_)


def _together(
    method: Method,
    state: State,
    plan: RoundPlan,
    done: Sequence[tuple[ModalityMethod, RoundPlan, Done]],
) -> Done:
    """A run's state after all of its modalities, and the participants' losses in their order."""
    server: Tree = state.server
    states = state.client_states
    places, losses = [], []
    for modal, alone, (after, loss) in done:
        rows = after.client_states.take(alone.clients)
        states = states.put(alone.clients, trees.overlay(states.take(alone.clients), rows))
        if modal.separate:
            server = {**server, modal.name: after.server}
        places.append((alone.clients[:, None] == plan.clients).nonzero()[:, 1])
        losses.append(loss)
    if not done[0][0].separate:
        sent = [after.server for _, _, (after, _) in done]
        if isinstance(method.aggregate, WeightedAverage):
            n = torch.stack([upload[SAMPLES] for upload in sent])
            means = _over_holders([upload[UPLOAD] for upload in sent], list(n), state.server)
            uploads, total = trees.apply(lambda leaf: leaf[None], means), n.sum(0, keepdim=True)
        else:
            uploads = _in_one_stack([upload[UPLOAD] for upload in sent], places)
            total = plan.weights(plan.n)
        clients: Tree = trees.to(states.take(plan.clients), total.device)
        server, clients = method.aggregate(state.server, clients, uploads, total)
        states = states.put(plan.clients, trees.to(clients, HOST))
    back = torch.cat(places).argsort().to(losses[0].device)
    return State(server, states), torch.cat(losses)[back]


def _over_holders(means: Sequence[Tree], samples: Sequence[Tensor], before: Tree) -> Tree:
    """Each leaf's mean over the modalities that have it, weighted by their samples.

    A leaf whose holders took no part is the server's own from ``before``.
    """
    averages: dict[str, Any] = {}
    keys = dict.fromkeys(key for tree in means for key in tree)
    for key in keys:
        pairs = [(tree[key], n) for tree, n in zip(means, samples, strict=True) if key in tree]
        leaves, weights = [leaf for leaf, _ in pairs], torch.stack([n for _, n in pairs])
        if isinstance(leaves[0], Mapping):
            old = before.get(key, {})
            averages[key] = {**old, **_over_holders(leaves, list(weights), old)}
        else:
            averages[key] = trees.mean({"": torch.stack(leaves)}, weights)[""]
    return averages


def _in_one_stack(uploads: Sequence[Tree], places: Sequence[Tensor]) -> dict[str, Any]:
    """All uploads, [participants, ...], in the order of clients, with zeros for a missing weight.

    Args:
        places: Of each modality's clients among the participants.
    """
    everything: dict[str, Any] = {}
    for upload in uploads:
        everything = trees.overlay(everything, upload)

    def whole(upload: Tree, clients: int) -> Tree:
        zeros = trees.apply(lambda leaf: leaf.new_zeros(clients, *leaf.shape[1:]), everything)
        return trees.overlay(zeros, upload)

    stack = trees.concatenate(list(map(whole, uploads, map(len, places))))
    return trees.take(stack, torch.cat(list(places)).argsort().to(trees.leaves(stack)[0].device))


Fit = Callable[[Tensor, Tensor], Tensor]
"""A leaf, and the clients that hold it, in ascending order."""


def stored(clients: Tree, method: Method, modality: np.ndarray | None) -> Tree:
    """A stack of all clients as it is kept for good: each leaf has the rows of those alone who hold
    it, in the order of clients.

    Args:
        method: The run's, which knows by modality what clients lack.
        modality: Of every client, [clients]; None where all have the same.
    """
    return _fitted(clients, method, modality, lambda leaf, rows: leaf[rows])


def blanked(state: State, method: Method, modality: np.ndarray | None) -> State:
    """The state with zeros in place of what clients do not hold."""
    if modality is None or not method.by_modality:
        return state

    def blank(leaf: Tensor, rows: Tensor) -> Tensor:
        return torch.zeros_like(leaf).index_copy_(0, rows, leaf[rows])

    return State(state.server, _fitted(state.clients, method, modality, blank))


def _fitted(clients: Tree, method: Method, modality: np.ndarray | None, fit: Fit) -> Tree:
    """The stack with another leaf for each that some clients lack."""
    if modality is None or not method.by_modality:
        return clients
    lacking = [method_of.missing_weights for method_of in method.by_modality]

    def each(tree: Tree, rows: Tensor | None) -> Tree:
        """rows: the holders of everything in the tree, where a name above it says who they are."""
        fitted: dict[str, Any] = {}
        for key, leaf in tree.items():
            holders = rows
            if holders is None and any(key in names for names in lacking):
                without = [number for number, names in enumerate(lacking) if key in names]
                holders = torch.from_numpy(np.flatnonzero(~np.isin(modality, without)))
            if isinstance(leaf, Mapping):
                fitted[key] = each(leaf, holders)
            else:
                fitted[key] = leaf if holders is None else fit(leaf, holders)
        return fitted

    return each(clients, None)
