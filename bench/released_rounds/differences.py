"""The largest difference of models after three rounds of ours and of a peer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from bench.released_rounds import pfllib, population
from bench.released_rounds.pfllib import Comparison
from bench.released_rounds.population import NETWORKS
from fl.api.trees import Tree
from fl.base.schema import GLOBAL, PERSONAL


def largest_difference(repository: Path, comparison: Comparison, network: str) -> float:
    """Return the largest difference of what a comparison compares, running statistics included."""
    run = population.simulation(comparison.method, network, **comparison.training)
    trained = population.train(run)
    server = pfllib.run(repository, comparison, network, run, trained)
    state, views = trained.state, run.method.views
    pairs = list(comparison.pairs(trained, server))
    if comparison.shared:
        shared = views[GLOBAL](state.server, None)
        pairs += model_pairs(network, shared, comparison.shared(server))
    if comparison.personal:
        for client in server.clients:
            variables = views[PERSONAL](state.server, trained.client(client.id))
            model = comparison.personal(client)
            pairs += model_pairs(network, variables, model, comparison.personal_statistics)
    return max(_difference(*pair) for pair in pairs)


def model_pairs(
    network: str, variables: Tree, model: nn.Module, running: bool = True
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter of ours and of a peer's model, and their running statistics."""
    names = [name for name, _ in NETWORKS[network]().named_parameters()]
    params = [variables["params"][name] for name in names]
    yield from zip(params, model.parameters(), strict=True)
    if running:
        ours = [leaf for leaf in variables["buffers"].values() if leaf.is_floating_point()]
        yield from zip(ours, pfllib.statistics(model), strict=True)


def _difference(first: Tensor, second: Tensor) -> float:
    if not first.dtype == second.dtype == torch.float64:
        raise TypeError(f"types are {first.dtype} and {second.dtype}")
    return float((first - second).detach().abs().max())
