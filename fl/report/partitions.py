"""The facts about a partition in a report, read from ``results/partitions/<id>/``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from fl.base import parquet
from fl.base.errors import DataError
from fl.base.files import parse_json
from fl.base.schema import SERVER


@dataclass(frozen=True)
class Partition:
    """Which client holds how much.

    Attributes:
        counts: By split, samples by client and class, in the order of ``clients``.
        unseen: The clients that are held out of training.
        modality: Of every client, where they differ in it.
        distances: Between domains (`fl.data.distance`).
    """

    id: str
    title: str
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    clients: tuple[int, ...]
    counts: dict[str, np.ndarray]
    statistics: pd.DataFrame
    unseen: tuple[int, ...] = ()
    modality: tuple[int, ...] = ()
    distances: pd.DataFrame | None = None

    @property
    def by_class(self) -> bool:
        """Whether samples are counted by class; masks are not."""
        return len(self.classes) > 1

    @property
    def at_server(self) -> int:
        """How many labelled samples the server has."""
        return int(self.statistics.loc[self.statistics["split"] == SERVER, "n"].sum())

    def majority(self, together: bool = False) -> pd.Series:
        """Per trained client, the share of test samples in its most frequent training class.

        Args:
            together: Over the test samples of all these clients instead of the client's own.
        """
        train, test = self._seen("train"), self._seen("test")
        if together:
            test = np.broadcast_to(test.sum(axis=0), test.shape)
        hits = test[np.arange(len(test)), train.argmax(axis=1)]
        size = test.sum(axis=1)
        seen = [client for client in self.clients if client not in self.unseen]
        return pd.Series(np.where(size > 0, hits / np.maximum(size, 1), np.nan), seen)

    def population_majority(self) -> float:
        """The share of all test samples in the most frequent training class of all clients."""
        train, test = self._seen("train").sum(axis=0), self._seen("test").sum(axis=0)
        return float(test[train.argmax()] / test.sum()) if test.sum() else float("nan")

    def _seen(self, split: str) -> np.ndarray:
        return self.counts[split][~np.isin(self.clients, self.unseen)]


def read(results: Path, name: str, title: str) -> Partition | None:
    """A partition's facts, or nothing if its folder does not exist.

    Args:
        title: The partition's name in the report.
    """
    folder = results / "partitions" / name
    if not (folder / "statistics.parquet").exists() or not (folder / "partition.json").exists():
        return None
    try:
        about = parse_json((folder / "partition.json").read_bytes())
        statistics = parquet.read(folder / "statistics.parquet")[0]
        columns = [f"class_{c}" for c in range(len(about["classes"]))]
        clients = tuple(sorted(int(c) for c in statistics["client"].unique()))
        counts = {
            split: statistics[statistics["split"] == split]
            .set_index("client")[columns]
            .reindex(clients, fill_value=0)
            .to_numpy(dtype=np.int64)
            for split in ("train", "val", "test")
        }
        distances = None
        if (folder / "domains.parquet").exists():
            distances = parquet.read(folder / "domains.parquet")[0]
    except (OSError, ValueError, KeyError, TypeError, DataError) as error:
        raise DataError(
            f"{folder}: the partition's statistics cannot be read ({error}); "
            "remove the folder and partition again"
        ) from error
    classes = tuple(str(c) for c in about["classes"])
    notes = tuple(str(note) for note in about.get("notes", ()))
    unseen = tuple(int(c) for c in about.get("unseen", ()))
    modality = tuple(int(kind) for kind in about.get("modality", ()))
    return Partition(
        *(name, title, classes, notes, clients, counts, statistics),
        unseen=unseen,
        modality=modality,
        distances=distances,
    )
