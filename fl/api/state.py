"""State of the server, of a client and of a pass: trees whose entries have names and types.

Each state has a class: here, in `fl.api.recipes`, or in the file of the method that adds entries.
It names every entry and its shape in one place, and mypy refuses an entry that is not there.

The classes are `TypedDict`s: when a program runs, a state is a dict. So the engine stacks, saves
and compiles all states alike, and a function that adds an entry to the state of any method (such as
`fl.blocks.participation`) works without a class for each method. Dataclasses would need one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from torch import Tensor

from fl.api.trees import Tree

Weights = Mapping[str, Tensor]
"""Weights, or values of the same shapes, by name in the network: ``{"0.weight": Tensor, ...}``."""


class Variables(TypedDict):
    """Variables of a network.

    Attributes:
        params: Parameters by name.
        buffers: Buffers by name, such as running statistics of batch normalisation.
    """

    params: Weights
    buffers: Weights


class ClientFacts(TypedDict, total=False):
    """Entries of a client that others than its method add: the engine, or a building block.

    Attributes:
        id: Number of the client, 0, 1, ..., int64 []. The engine adds it after `Method.init`.
        counts: The client's training samples by class, int64 [classes]; zeros if the task has no
            class for each sample. The engine adds it.
        modality: Number of the client's modality, int64 []. The engine adds it if clients differ.
        payload: What the server computes for this client alone, in a phase with
            `fl.api.method.Phase.payload`.
        rounds: Number of rounds in which the client took part, [], if
            `fl.blocks.participation.with_participation` counts them.
    """

    id: Tensor
    counts: Tensor
    modality: Tensor
    payload: Tree
    rounds: Tensor
