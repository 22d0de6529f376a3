"""The largest difference of models after three rounds of ours and of a peer."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from bench.released_rounds import pfllib, population
from bench.released_rounds.pfllib import Comparison
from bench.released_rounds.readers import model_pairs
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
        pairs += model_pairs(trained, shared, comparison.shared(server))
    if comparison.personal:
        for client in server.clients:
            variables = views[PERSONAL](state.server, trained.client(client.id))
            model = comparison.personal(client)
            pairs += model_pairs(trained, variables, model, comparison.personal_statistics)
    return max(_difference(*pair) for pair in pairs)


def _difference(first: Tensor, second: Tensor) -> float:
    if not first.dtype == second.dtype == torch.float64:
        raise TypeError(f"types are {first.dtype} and {second.dtype}")
    return float((first - second).detach().abs().max())
