"""The samples of clients: a partition of a data set, as a run uses it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from fl.api.method import REAL
from fl.base import rng
from fl.base.schema import GROUP, SERVER, UNSEEN

NO_SAMPLES = np.zeros(0, np.int64)
UNSEEN_VAL = "unseen-val"
TEST_OWN, TEST_UNION, TEST_REWEIGHTED = "own", "global", "reweighted"
"""Test samples of a client's model: the client's own; those of all clients; its own, and
additionally those of all clients for the metric `fl.base.schema.REWEIGHTED`.
"""


class SamplesByClient(Sequence[np.ndarray]):
    """The samples of each client, as slices of one array.

    A separate array for each of very many clients would take more memory than the numbers in it.

    Args:
        numbers: Sample numbers, one client after another, int64 [samples].
        sizes: Number of samples of each client, int64 [clients].
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
    """The samples of every client, by split: ``data.samples["test"][client]`` is an int64 array.

    Unseen clients have their test samples in the split `UNSEEN`, their validation samples in
    `UNSEEN_VAL`, and none in ``val`` and ``test``.

    Attributes:
        samples: Sample numbers by split and client.
        absent_clients: Clients that take part in no round, in ascending order.
        union_test_samples: The test samples of all clients, if models are scored on them in
            addition to the client's own.
        server: The server's own samples, which no client has, int64 [m].
        groups: Group of each sample by its number, texts; None if the data set has no groups.
    """

    samples: Mapping[str, Sequence[np.ndarray]]
    absent_clients: tuple[int, ...] = ()
    union_test_samples: np.ndarray | None = None
    server: np.ndarray = field(default_factory=lambda: NO_SAMPLES)
    groups: np.ndarray | None = None

    @classmethod
    def from_table(
        cls, table: pd.DataFrame, test: str = TEST_OWN, unseen_take_part: bool = False
    ) -> ClientData:
        """Read the samples of clients from a partition table.

        Args:
            table: The table, with the columns ``sample``, ``client``, ``split`` and more.
            test: `TEST_OWN`: clients are tested on their own samples. `TEST_UNION`: each client
                with test samples is tested on those of all. `TEST_REWEIGHTED`: on its own, and
                separately on those of all.
            unseen_take_part: Whether unseen clients take part in rounds.

        Returns:
            The samples of all clients.
        """
        clients = int(table["client"].max()) + 1
        is_unseen = np.zeros(len(table), bool)
        if UNSEEN in table:
            is_unseen = table[UNSEEN].to_numpy(bool)
        unseen_clients = np.unique(table["client"].to_numpy()[is_unseen])
        split = table["split"].mask(is_unseen & (table["split"] == "test").to_numpy(bool), UNSEEN)
        split = split.mask(is_unseen & (table["split"] == "val").to_numpy(bool), UNSEEN_VAL)
        by_split: dict[str, Sequence[np.ndarray]] = {}
        for name, rows in table.groupby(split, sort=True):
            by_split[str(name)] = _group_by_client(rows, clients)
        server_samples = [
            numbers
            for client, numbers in enumerate(by_split.pop(SERVER, ()))
            if client not in unseen_clients
        ]
        union = np.sort(join_samples(by_split.get("test", ())))
        if test == TEST_UNION:
            by_split["test"] = [union if len(numbers) else numbers for numbers in by_split["test"]]
        groups = None
        if GROUP in table:
            groups = np.full(table["sample"].max() + 1, "", object)
            groups[table["sample"]] = table[GROUP]
        return cls(
            by_split,
            () if unseen_take_part else tuple(unseen_clients.tolist()),
            union if test == TEST_REWEIGHTED else None,
            np.sort(join_samples(server_samples)),
            groups,
        )

    def samples_of(self, splits: str, client: int) -> np.ndarray:
        """Return a client's samples of a split, or of several: ``train+val``."""
        splits = "train" if splits == REAL and REAL not in self.samples else splits
        first, *further = splits.split("+")
        names = [first, *further, *([UNSEEN_VAL] if "val" in further else [])]
        samples = [self.samples[name][client] for name in names if name in self.samples]
        return samples[0] if len(samples) == 1 else np.sort(join_samples(samples))

    def sizes(self, split: str) -> np.ndarray:
        """Count each client's samples of a split, int64 [clients]; zeros if it does not exist."""
        samples = self.samples.get(split, [NO_SAMPLES] * self.clients)
        if isinstance(samples, SamplesByClient):
            return samples.sizes
        return np.array([len(numbers) for numbers in samples], np.int64)

    def clients_with_samples(self, split: str) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the clients that have samples of a split, in ascending order, and the samples."""
        if split in self.samples:
            for client in np.flatnonzero(self.sizes(split)).tolist():
                yield client, self.samples[split][client]

    def select_clients(self, clients: np.ndarray) -> ClientData:
        """Return the data in which only the given clients have samples and take part."""
        samples = {
            split: _keep_clients(by_client, np.sort(clients))
            for split, by_client in self.samples.items()
        }
        unselected = np.setdiff1d(np.arange(self.clients), clients)
        absent_clients = np.union1d(self.absent_clients, unselected)
        return replace(self, samples=samples, absent_clients=tuple(absent_clients.tolist()))

    def sample_clients(self, count: int, seed: int) -> np.ndarray:
        """Sample clients for evaluation; a larger sample contains every smaller one.

        Args:
            count: Largest number of clients that are seen in training, and of unseen clients.
            seed: Seed of the run.

        Returns:
            Clients in ascending order, int64.
        """
        unseen = np.flatnonzero(self.sizes(UNSEEN))
        generator = rng.generator(seed, "evaluated")
        groups = np.setdiff1d(np.arange(self.clients), unseen), unseen
        sampled = [generator.permutation(group)[:count] for group in groups]
        return np.sort(np.concatenate(sampled))

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.samples["train"])

    @cached_property
    def participants(self) -> np.ndarray:
        """The clients that may take part in rounds."""
        is_participant = np.ones(self.clients, bool)
        is_participant[np.array(self.absent_clients, np.int64)] = False
        return np.flatnonzero(is_participant)


def join_samples(samples: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate the samples of several clients or splits."""
    if isinstance(samples, SamplesByClient):
        return samples.numbers
    return np.concatenate([NO_SAMPLES, *samples])


def _keep_clients(samples: Sequence[np.ndarray], clients: np.ndarray) -> Sequence[np.ndarray]:
    """Keep the samples of some clients, given in ascending order; empty the others."""
    if not isinstance(samples, SamplesByClient):
        selected = {*clients.tolist()}
        return [numbers if k in selected else NO_SAMPLES for k, numbers in enumerate(samples)]
    sizes = np.zeros_like(samples.sizes)
    sizes[clients] = samples.sizes[clients]
    return SamplesByClient(join_samples([samples[k] for k in clients.tolist()]), sizes)


def _group_by_client(rows: pd.DataFrame, clients: int) -> SamplesByClient:
    """Group samples by client, in ascending order, without a loop over the table per client."""
    client, sample = rows["client"].to_numpy(np.int64), rows["sample"].to_numpy(np.int64)
    order = np.lexsort((sample, client))
    return SamplesByClient(sample[order], np.bincount(client, minlength=clients))
