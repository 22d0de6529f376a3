"""What several comparisons share: models of PFLlib's servers and clients, and orders of calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
        ours = [leaf for leaf in variables["buffers"].values() if leaf.is_floating_point()]
        yield from zip(ours, statistics(model), strict=True)


def statistics(model: nn.Module) -> list[Tensor]:
    """Return the running means and variances of a model, one after another."""
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


def part_pairs(params: Tree, names: Iterable[str], parameters: Iterable[Tensor]) -> Pairs:
    """Yield some leaves of ours, by name, and a peer's parameters in the same order."""
    yield from zip([params[name] for name in names], parameters, strict=True)
