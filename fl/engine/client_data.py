"""Who holds which samples of a data set: a partition, as a run sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from fl.api.method import REAL
from fl.base import rng
from fl.base.schema import SERVER, UNSEEN
from fl.data.inputs import MODALITY

NO_SAMPLES = np.zeros(0, np.int64)
UNSEEN_VAL = "unseen-val"
OWN, UNION, BOTH = "own", "global", "reweighted"
"""Whose test samples a client's model is scored on: the client's own, or those of all clients; or
both, the latter by `fl.base.schema.REWEIGHTED`.
"""


class ByClient(Sequence[np.ndarray]):
    """The samples of each client: parts of one array, as an array for each of very many takes more
    memory than the numbers in it.

    Args:
        numbers: One client's after another's, int64 [samples].
        sizes: How many each client has, int64 [clients].
    """

    def __init__(self, numbers: np.ndarray, sizes: np.ndarray) -> None:
        self.numbers, self.sizes = numbers, sizes
        self._ends = np.cumsum(sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, client: Any) -> Any:
        if not 0 <= client < len(self):
            raise IndexError(client)
        end = self._ends[client]
        return self.numbers[end - self.sizes[client] : end]


@dataclass(frozen=True)
class ClientData:
    """The samples of every client, by split: ``held.samples["test"][client]`` is an int64 array.

    Unseen clients have their test samples in the split `UNSEEN`, their validation samples in
    `UNSEEN_VAL`, and none in ``val`` and ``test``.

    Attributes:
        away: Clients that take part in no round, in ascending order.
        everywhere: The test samples of all clients, where models are scored on them in addition to
            the client's own.
        modality: Of every client, int64 [clients], where they differ in it.
        server: The samples that are the server's own, of which no client sees any, int64 [m].
    """

    samples: Mapping[str, Sequence[np.ndarray]]
    away: tuple[int, ...] = ()
    everywhere: np.ndarray | None = None
    modality: np.ndarray | None = None
    server: np.ndarray = field(default_factory=lambda: NO_SAMPLES)

    @classmethod
    def of(cls, table: pd.DataFrame, test: str = OWN, everybody: bool = False) -> ClientData:
        """The samples in a partition table.

        Args:
            test: `OWN`: clients are tested on their own samples. `UNION`: each client that has test
                samples, on those of all. `BOTH`: on its own, and separately on those of all.
            everybody: Unseen clients take part as well.
        """
        clients = int(table["client"].max()) + 1
        unseen = np.zeros(len(table), bool)
        if UNSEEN in table:
            unseen = table[UNSEEN].to_numpy(bool)
        away = np.unique(table["client"].to_numpy()[unseen])
        split = table["split"].mask(unseen & (table["split"] == "test").to_numpy(bool), UNSEEN)
        split = split.mask(unseen & (table["split"] == "val").to_numpy(bool), UNSEEN_VAL)
        by_split: dict[str, Sequence[np.ndarray]] = {}
        for name, rows in table.groupby(split, sort=True):
            by_split[str(name)] = _by_client(rows, clients)
        dealt = enumerate(by_split.pop(SERVER, ()))
        served = [numbers for client, numbers in dealt if client not in away]
        union = np.sort(together(by_split.get("test", ())))
        if test == UNION:
            by_split["test"] = [union if len(numbers) else numbers for numbers in by_split["test"]]
        without = () if everybody else tuple(away.tolist())
        modality = None
        if MODALITY in table:
            modality = table.groupby("client")[MODALITY].first().to_numpy(np.int64)
        server = np.sort(together(served))
        return cls(by_split, without, union if test == BOTH else None, modality, server)

    def of_splits(self, names: str, client: int) -> np.ndarray:
        """A client's samples of a split, or of several: ``train+val``."""
        names = "train" if names == REAL and REAL not in self.samples else names
        split, *others = names.split("+")
        wanted = [split, *others, *([UNSEEN_VAL] if "val" in others else [])]
        samples = [self.samples[name][client] for name in wanted if name in self.samples]
        return samples[0] if len(samples) == 1 else np.sort(together(samples))

    def sizes(self, split: str) -> np.ndarray:
        """How many samples of a split each client has, int64 [clients]; zeros without the split."""
        samples = self.samples.get(split, [NO_SAMPLES] * self.clients)
        if isinstance(samples, ByClient):
            return samples.sizes
        return np.array([len(numbers) for numbers in samples], np.int64)

    def having(self, split: str) -> Iterator[tuple[int, np.ndarray]]:
        """The clients that have samples of a split, in ascending order, with these samples."""
        if split in self.samples:
            for client in np.flatnonzero(self.sizes(split)).tolist():
                yield client, self.samples[split][client]

    def of_clients(self, clients: np.ndarray) -> ClientData:
        """The same clients, but only some of them hold samples and take part."""
        samples = {split: _only(its, np.sort(clients)) for split, its in self.samples.items()}
        others = np.setdiff1d(np.arange(self.clients), clients)
        return replace(self, samples=samples, away=tuple(np.union1d(self.away, others).tolist()))

    def sampled(self, count: int, seed: int) -> np.ndarray:
        """At most ``count`` clients drawn by a seed, and as many of those held out of training; a
        larger sample has all clients of a smaller one.
        """
        unseen = np.flatnonzero(self.sizes(UNSEEN))
        draw = rng.generator(seed, "evaluated")
        groups = np.setdiff1d(np.arange(self.clients), unseen), unseen
        drawn = [draw.permutation(group)[:count] for group in groups]
        return np.sort(np.concatenate(drawn))

    def of_modality(self, modality: int) -> ClientData:
        """The same clients, but only those of one modality hold samples and take part."""
        assert self.modality is not None
        return self.of_clients(np.flatnonzero(self.modality == modality))

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.samples["train"])

    @cached_property
    def participants(self) -> np.ndarray:
        """The clients that may take part in rounds."""
        taking = np.ones(self.clients, bool)
        taking[np.array(self.away, np.int64)] = False
        return np.flatnonzero(taking)


def together(samples: Sequence[np.ndarray]) -> np.ndarray:
    """The samples of several clients, or splits, one after another."""
    if isinstance(samples, ByClient):
        return samples.numbers
    return np.concatenate([NO_SAMPLES, *samples])


def _only(samples: Sequence[np.ndarray], clients: np.ndarray) -> Sequence[np.ndarray]:
    """The samples of some clients, in ascending order; the others have none."""
    if not isinstance(samples, ByClient):
        wanted = {*clients.tolist()}
        return [numbers if k in wanted else NO_SAMPLES for k, numbers in enumerate(samples)]
    sizes = np.zeros_like(samples.sizes)
    sizes[clients] = samples.sizes[clients]
    return ByClient(together([samples[k] for k in clients.tolist()]), sizes)


def _by_client(rows: pd.DataFrame, clients: int) -> ByClient:
    """The samples of each client, in ascending order; no loop over the table for each of them."""
    client, sample = rows["client"].to_numpy(np.int64), rows["sample"].to_numpy(np.int64)
    order = np.lexsort((sample, client))
    return ByClient(sample[order], np.bincount(client, minlength=clients))
