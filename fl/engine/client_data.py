"""Who holds which samples of a data set: a partition, as a run sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd

from fl.api.method import REAL
from fl.base import rng
from fl.base.schema import SERVER, UNSEEN
from fl.data.modality import MODALITY

NO_SAMPLES = np.zeros(0, np.int64)
UNSEEN_VAL = "unseen-val"
OWN, UNION, BOTH = "own", "global", "reweighted"
"""Whose test samples a client's model is scored on: the client's own, or those of all clients; or
both, the latter by `fl.base.schema.REWEIGHTED`.
"""


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

    samples: Mapping[str, list[np.ndarray]]
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
        by_split = {}
        for name, rows in table.groupby(split, sort=True):
            by_split[str(name)] = _by_client(rows, clients)
        dealt = enumerate(by_split.pop(SERVER, ()))
        served = [numbers for client, numbers in dealt if client not in away]
        union = np.sort(np.concatenate(by_split.get("test", [np.zeros(0, np.int64)])))
        if test == UNION:
            by_split["test"] = [union if len(numbers) else numbers for numbers in by_split["test"]]
        without = () if everybody else tuple(away.tolist())
        modality = None
        if MODALITY in table:
            modality = table.groupby("client")[MODALITY].first().to_numpy(np.int64)
        server = np.sort(np.concatenate([NO_SAMPLES, *served]))
        return cls(by_split, without, union if test == BOTH else None, modality, server)

    def of_splits(self, names: str, client: int) -> np.ndarray:
        """A client's samples of a split, or of several: ``train+val``."""
        names = "train" if names == REAL and REAL not in self.samples else names
        split, *others = names.split("+")
        wanted = [split, *others, *([UNSEEN_VAL] if "val" in others else [])]
        samples = [self.samples[name][client] for name in wanted if name in self.samples]
        return samples[0] if len(samples) == 1 else np.sort(np.concatenate([NO_SAMPLES, *samples]))

    def of_clients(self, clients: np.ndarray) -> ClientData:
        """The same clients, but only some of them hold samples and take part."""
        wanted = set(clients.tolist())
        samples = {
            split: [numbers if k in wanted else NO_SAMPLES for k, numbers in enumerate(by_client)]
            for split, by_client in self.samples.items()
        }
        others = set(range(self.clients)) - wanted
        return replace(self, samples=samples, away=tuple(sorted({*self.away, *others})))

    def sampled(self, count: int, seed: int) -> np.ndarray:
        """At most ``count`` clients drawn by a seed, and as many of those held out of training."""
        out = [len(numbers) > 0 for numbers in self.samples.get(UNSEEN, ())]
        unseen = np.flatnonzero(out)
        draw = rng.generator(seed, "evaluated")
        groups = np.setdiff1d(np.arange(self.clients), unseen), unseen
        drawn = [draw.choice(group, min(count, len(group)), replace=False) for group in groups]
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
        return np.setdiff1d(np.arange(self.clients), self.away)


def _by_client(rows: pd.DataFrame, clients: int) -> list[np.ndarray]:
    """The samples of each client, in ascending order; no loop over the table for each of them."""
    client, sample = rows["client"].to_numpy(np.int64), rows["sample"].to_numpy(np.int64)
    order = np.lexsort((sample, client))
    ends = np.searchsorted(client[order], np.arange(clients - 1), side="right")
    return np.split(sample[order], ends)
