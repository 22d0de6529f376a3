"""What lies between the clients' uploads and the server: stages, and aggregations beside the mean.

A study can add them to any method whose server knows uploads by a mean (`fl.api.method.ByMean`).
An upload is one row of numbers: of weights their change since they were sent, of all else what it
is. Whole numbers, such as counters, are in no row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fl.api.method import BuildContext
from fl.api.protocols import Batch, Combine
from fl.api.trees import Tree
from fl.base import rng
from fl.pytorch import keyed

WIRE = "wire"
"""In the server's tree and a client's: what stages keep, the round, and who attacks."""


@dataclass(frozen=True)
class Message:
    """Size of an upload, in bits.

    numbers: how many are sent; bits: of each; more: beside them.
    """

    numbers: int
    bits: int
    more: int = 0

    @property
    def total(self) -> int:
        """All bits."""
        return self.numbers * self.bits + self.more


@dataclass(frozen=True)
class Crossing:
    """The uploads of a round on their way.

    rows: [K, d]; weights: of each in the mean, [K]; ids: of the clients.
    round: 1, 2, ...; seed: the run's; clients: how many there are, drawn or not.
    kept: what the stage keeps with each client, stacked; state: what it keeps on the server.
    bound: the norm that no row exceeds, where a stage has seen to that, a scalar; counted: where it
    has counted clients for that, the deviation of the noise on their share.
    """

    rows: Tensor
    weights: Tensor
    ids: tuple[int, ...]
    round: int
    seed: int
    clients: int
    kept: Tree = field(default_factory=dict)
    state: Tree = field(default_factory=dict)
    bound: Tensor | None = None
    counted: float = 0.0

    def uniform(self, name: str, of_server: bool = False) -> Tensor:
        """Numbers in [0, 1), float64 [K, d], each row by (seed, name, client, round); of the server
        one row, [1, d].
        """
        return keyed.uniform(self._keys(name, of_server), 0, self.rows.shape[1:])

    def normal(self, name: str, of_server: bool = False) -> Tensor:
        """Standard normal numbers, of the shape of `uniform`.

        Box and Muller. A Note on the Generation of Random Normal Deviates. Annals of Mathematical
        Statistics 29, 1958.
        """
        keys, shape = self._keys(name, of_server), self.rows.shape[1:]
        radius = (-2 * torch.log1p(-keyed.uniform(keys, 0, shape))).sqrt()
        return radius * torch.cos(2 * math.pi * keyed.uniform(keys, 1, shape))

    def attackers(self, share: float) -> Tensor:
        """Whether a row is of an attacker, bool [K]."""
        chosen = attackers(self.seed, share, self.clients)
        return chosen[list(self.ids)].to(self.rows.device)

    def _keys(self, name: str, of_server: bool) -> Tensor:
        whose = [()] if of_server else [(client,) for client in self.ids]
        keys = [rng.torch_seed(self.seed, name, *client, self.round) for client in whose]
        return torch.tensor(keys, device=self.rows.device)


def attackers(seed: int, share: float, clients: int) -> Tensor:
    """Who attacks: that share of all clients, drawn by seed, bool [clients].

    A larger share has those of a smaller one, and all stages of a run draw the same.
    """
    order = rng.generator(seed, "attackers").permutation(clients)
    chosen = torch.zeros(clients, dtype=torch.bool)
    chosen[torch.from_numpy(order[: round(share * clients)])] = True
    return chosen


@dataclass(frozen=True)
class Stage:
    """One thing that happens to uploads.

    name: of what it keeps, and of its random numbers. apply: the crossing after it.
    message: what the upload takes after it, from what it took before.
    kept: what a client begins with, given a row of zeros [d]; state: what the server begins with,
    likewise.
    share: of clients whose training samples ``batch`` changes.
    bounds: whether it sees to a ``bound``; counted: that of `Crossing`.
    multiplier: of the noise that it adds to the mean, by that bound; 0 is none.
    """

    name: str
    apply: Callable[[Crossing], Crossing] = lambda crossing: crossing
    message: Callable[[Message], Message] = lambda message: message
    kept: Callable[[Tensor], Mapping[str, Tensor]] = lambda row: {}
    state: Callable[[Tensor], Mapping[str, Tensor]] = lambda row: {}
    share: float = 0.0
    batch: Callable[[Batch], Batch] | None = None
    bounds: bool = False
    counted: float | None = None
    multiplier: float = 0.0


@dataclass(frozen=True)
class Aggregation:
    """What the server puts in the place of the mean of uploads.

    combine: from rows and their weights, the row that stands for all. least: participants that a
    round must have.
    """

    combine: Combine
    least: int = 1


def per_round(context: BuildContext) -> int:
    """How many clients take part in a round."""
    return max(1, round(context.training.participation * context.participants))
