"""What several comparisons share: models of PFLlib's servers and clients, and orders of calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from bench.released_rounds.population import Trained
from fl.api.trees import Tree

Pairs = Iterator[tuple[Tensor, Tensor]]
"""Tensors of ours and of a peer that must be equal."""

UNIFORM = {"weighting": "uniform"}
"""Training of ours where PFLlib's clients count alike, as in the papers."""

TRAINING_THEN_SWEEP = (((-1, 0),), ((-1, 1),))
"""The calls of a client that trains and then looks at all of its samples."""

TWO_PASSES = ((-1, 0), (-1, 1))
"""The passes of a client that trains head and body one after the other."""


def global_model(server: Any) -> nn.Module:
    """Return the model of a server."""
    model: nn.Module = server.global_model
    return model


def sent_model(server: Any) -> nn.Module:
    """Return the shared model as the first client gets it."""
    model: nn.Module = server.clients[0].model
    return model


def client_model(client: Any) -> nn.Module:
    """Return the model of a client."""
    model: nn.Module = client.model
    return model


def model_pairs(trained: Trained, variables: Tree, model: nn.Module, running: bool = True) -> Pairs:
    """Yield each parameter of ours and of a peer's model, and their running statistics."""
    params = [variables["params"][name] for name in trained.variables["params"]]
    yield from zip(params, model.parameters(), strict=True)
    if running:
        buffers = variables["buffers"].items()
        ours = {name: leaf for name, leaf in buffers if leaf.is_floating_point()}
        yield from by_name(ours, statistics(model))


def statistics(model: nn.Module) -> dict[str, Tensor]:
    """Return the running means and variances of a model, by the names that our network has.

    PFLlib has all layers but the last in a part ``base``.
    """
    found = {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}
    return {name.removeprefix("base."): buffer for name, buffer in found.items()}


def by_name(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> Pairs:
    """Yield the tensors of two models that have one name.

    Raises:
        ValueError: If a name is in one of them alone.
    """
    if first.keys() != second.keys():
        raise ValueError(f"one model has {', '.join(first)}, the other {', '.join(second)}")
    for name, tensor in first.items():
        yield tensor, second[name]


def part_pairs(params: Tree, names: Iterable[str], parameters: Iterable[Tensor]) -> Pairs:
    """Yield some leaves of ours, by name, and a peer's parameters in the same order."""
    yield from zip([params[name] for name in names], parameters, strict=True)
