"""The largest difference of models after three rounds of ours and of a peer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.released_rounds import pfllib, population
from bench.released_rounds.edits import Departure
from bench.released_rounds.pfllib import Comparison
from bench.released_rounds.readers import model_pairs
from fl.base.schema import GLOBAL, PERSONAL


class Trial:
    """Three rounds of ours, with which a peer's are compared.

    Args:
        comparison: The comparison.
        network: The name of the network.
    """

    def __init__(self, comparison: Comparison, network: str) -> None:
        self.comparison, self.network = comparison, network
        self.run = population.simulation(comparison.method, network, **comparison.training)
        self.trained = population.train(self.run)

    def movement(self) -> float:
        """Return the largest change of a weight of our evaluated models in three rounds."""
        start, end, views = self.trained.start, self.trained.state, self.run.method.views
        changes = list[Tensor]()
        for client in range(len(population.SIZES)):
            for view in views.values():
                first = view(start.server, start.client(client, torch.device("cpu")))["params"]
                last = view(end.server, self.trained.client(client))["params"]
                changes += [(last[name] - first[name]).abs().max() for name in first]
        return float(torch.stack(changes).max())

    def difference(self, repository: Path, undone: Sequence[Departure]) -> float:
        """Return the largest difference from a peer's run in which some departures are undone."""
        comparison = replace(self.comparison, departures=tuple(undone))
        server = pfllib.run(repository, comparison, self.network, self.run, self.trained)
        return largest_difference(self._pairs(server))

    def sizes(self, repository: Path) -> Iterator[tuple[str, float]]:
        """Yield the largest difference that each departure makes alone, and all together."""
        departures = self.comparison.departures
        for number, departure in enumerate(departures):
            others = departures[:number] + departures[number + 1 :]
            yield departure.reason, self.difference(repository, others)
        if len(departures) > 1:
            yield "all together", self.difference(repository, ())

    def _pairs(self, server: Any) -> Iterator[tuple[Tensor, Tensor]]:
        comparison, trained, views = self.comparison, self.trained, self.run.method.views
        yield from comparison.pairs(trained, server)
        if comparison.shared:
            shared = views[GLOBAL](trained.state.server, None)
            yield from model_pairs(trained, shared, comparison.shared(server))
        if comparison.personal:
            for client in server.clients:
                variables = views[PERSONAL](trained.state.server, trained.client(client.id))
                model = comparison.personal(client)
                yield from model_pairs(trained, variables, model, comparison.personal_statistics)


def largest_difference(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the largest difference of two tensors of a pair; NaN if one has an entry of NaN.

    Raises:
        TypeError: If they are not in double precision.
        ValueError: If their shapes differ.
    """
    differences = [_difference(*pair) for pair in pairs]
    return float(np.max(differences))  # Unlike the built-in `max`, it returns NaN if one is.


def _difference(first: Tensor, second: Tensor) -> float:
    if not first.dtype == second.dtype == torch.float64:
        raise TypeError(f"types are {first.dtype} and {second.dtype}")
    if first.shape != second.shape:
        raise ValueError(f"shapes are {list(first.shape)} and {list(second.shape)}")
    return float((first - second).detach().abs().max())
