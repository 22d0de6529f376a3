"""Stacks of clients that differ in modality, as they are stored: without what a client lacks.

In memory the clients of a run are one stack, in which a weight that a client does not hold is zero.
On disk, in checkpoints and among final weights, each leaf has the rows of those alone who hold it,
in the order of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl.api.method import Method
from fl.api.trees import Tree
from fl.engine.client_states import ClientStates
from fl.engine.state import State

Fit = Callable[[Tensor, Tensor], Tensor]
"""A leaf, and the clients that hold it, in ascending order."""


def saved(clients: Tree, method: Method, modality: np.ndarray | None) -> dict[str, Any]:
    """All clients as a tree for a checkpoint; see `stored`."""
    if isinstance(clients, ClientStates) and (modality is None or not method.by_modality):
        return clients.saved()
    return stored(clients, method, modality)


def loaded(tree: Tree, method: Method, modality: np.ndarray | None) -> ClientStates:
    """What `saved` gave."""
    if "rows" in tree and (modality is None or not method.by_modality):
        return ClientStates.loaded(tree)
    return ClientStates.of(in_memory(tree, method, modality))


def stored(clients: Tree, method: Method, modality: np.ndarray | None) -> dict[str, Any]:
    """A stack of all clients, each leaf with the rows of its holders only.

    Args:
        method: The run's, which knows by modality what clients lack.
        modality: Of every client, [clients]; None where all have the same.
    """
    lacking = [one.lacking for one in method.by_modality]
    if modality is None or not lacking:
        return dict(clients)
    return _each(clients, lacking, modality, lambda leaf, rows: leaf[rows])


def in_memory(clients: Tree, method: Method, modality: np.ndarray | None) -> dict[str, Any]:
    """What `stored` gave, as a stack of all clients, with zeros where a client has nothing."""
    lacking = [one.lacking for one in method.by_modality]
    if modality is None or not lacking:
        return dict(clients)
    count = len(modality)

    def spread(leaf: Tensor, rows: Tensor) -> Tensor:
        return leaf.new_zeros(count, *leaf.shape[1:]).index_copy_(0, rows, leaf)

    return _each(clients, lacking, modality, spread)


def blanked(state: State, method: Method, modality: np.ndarray | None) -> State:
    """The state with zeros in place of what clients do not hold."""
    if modality is None or not method.by_modality:
        return state
    leaves = stored(state.clients, method, modality)
    return State(state.server, in_memory(leaves, method, modality))


def _each(
    tree: Tree,
    lacking: Sequence[frozenset[str]],
    modality: np.ndarray,
    fit: Fit,
    rows: Tensor | None = None,
) -> dict[str, Any]:
    """rows: the holders of everything in the tree, where a name above it says who they are."""
    found = dict[str, Any]()
    for key, leaf in tree.items():
        own = rows
        if own is None and any(key in names for names in lacking):
            without = [number for number, names in enumerate(lacking) if key in names]
            own = torch.from_numpy(np.flatnonzero(~np.isin(modality, without)))
        if isinstance(leaf, Mapping):
            found[key] = _each(leaf, lacking, modality, fit, own)
        else:
            found[key] = leaf if own is None else fit(leaf, own)
    return found
