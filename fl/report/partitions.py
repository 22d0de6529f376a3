"""Partitions, read from ``results/partitions/<id>/``, and tables of the samples of clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fl.base import files
from fl.base.errors import DataError
from fl.base.files import parse_json
from fl.base.folders import partition_folder
from fl.base.schema import SERVER
from fl.base.units import first_of
from fl.plan.study_plan import StudyPlan
from fl.report.cells import DASH, Cell, Row, Table, columns, decimal

SKEW = {"label_entropy": "label\nentropy", "majority_share": "majority\nshare", "emd": "EMD"}
"""Statistics of a client's labels: names in tables by column."""


@dataclass(frozen=True)
class Partition:
    """The clients of a partition and the samples that they hold.

    Attributes:
        id: Id of the partition.
        title: Its name in the report.
        classes: Names of the classes.
        notes: Notes of the partition scheme.
        clients: The clients, sorted.
        counts: Numbers of samples by split, [clients, classes].
        statistics: A row for each client and split.
        unseen: The clients that are held out of training.
        modality: Modality of every client; empty if all have the same.
        domain: Domain of every client; empty without domains.
        distances: Distances between domains (`fl.data.partitioning`).
        names: Names of the clients by number; empty if they have none.
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
    domain: tuple[str, ...] = ()
    distances: pd.DataFrame | None = None
    names: tuple[str, ...] = ()

    @property
    def client_labels(self) -> list[str]:
        """The clients' names, as far as they have any, else their numbers."""
        return [
            self.names[number] if number < len(self.names) else str(number)
            for number in self.clients
        ]

    @property
    def by_class(self) -> bool:
        """Whether samples are counted by class; masks are not."""
        return len(self.classes) > 1

    @property
    def remarks(self) -> list[str]:
        """Remarks on the partition that its tables do not show."""
        count = int(self.statistics.loc[self.statistics["split"] == SERVER, "n"].sum())
        server = f"the server holds {count:,} labelled samples, which no client sees"
        return [*self.notes, *([server] if count else [])]

    @property
    def skew(self) -> pd.DataFrame:
        """Columns of `SKEW` of training splits, a row for each client."""
        train = self.statistics[self.statistics["split"] == "train"].set_index("client")
        return train[list(SKEW)].reindex(self.clients)

    def majority(
        self, all_samples: bool = False, population: bool = False, unseen: bool = False
    ) -> pd.Series:
        """Return the share of test samples in the most frequent training class, by client.

        Args:
            all_samples: Whether test samples are those of all trained clients, not of the client.
            population: Whether the class is the most frequent one of all trained clients, not of
                the client.
            unseen: Whether clients are those held out of training, not the trained ones.
        """
        train, test = self.counts["train"], self.counts["test"]
        is_unseen = np.isin(self.clients, self.unseen)
        if all_samples:
            test = np.broadcast_to(test[~is_unseen].sum(axis=0), test.shape)
        if population:
            train = np.broadcast_to(train[~is_unseen].sum(axis=0), train.shape)
        hits = test[np.arange(len(test)), train.argmax(axis=1)]
        size = test.sum(axis=1)
        shares = np.where(size > 0, hits / np.maximum(size, 1), np.nan)
        return pd.Series(shares, self.clients)[is_unseen if unseen else ~is_unseen]


def read(results: Path, name: str, title: str) -> Partition | None:
    """Read a partition; None if its folder does not exist.

    Args:
        results: Folder of the results.
        name: Id of the partition.
        title: The partition's name in the report.
    """
    folder = partition_folder(results, name)
    if not (folder / "statistics.parquet").exists() or not (folder / "partition.json").exists():
        return None
    try:
        about = parse_json((folder / "partition.json").read_bytes())
        statistics = files.read_parquet(folder / "statistics.parquet")[0]
        distances = folder / "domains.parquet"
        return Partition(
            id=name,
            title=title,
            classes=tuple(map(str, about["classes"])),
            notes=tuple(map(str, about.get("notes", ()))),
            clients=tuple(sorted(map(int, statistics["client"].unique()))),
            counts=_counts(statistics, len(about["classes"])),
            statistics=statistics,
            unseen=tuple(map(int, about.get("unseen", ()))),
            modality=tuple(map(int, about.get("modality", ()))),
            domain=tuple(map(str, about.get("domains", ()))),
            distances=files.read_parquet(distances)[0] if distances.exists() else None,
            names=_client_names(about),
        )
    except (OSError, ValueError, KeyError, TypeError, DataError) as error:
        raise DataError(
            f"{folder}: the partition's statistics cannot be read ({error})",
            advice="remove the folder, and make the partition again",
        ) from error


def _client_names(about: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of clients in a partition's record; those of domains if each has its own."""
    domains = tuple(map(str, about.get("domains", ())))
    is_domain = about.get("scheme") in ("natural", "domain") and len({*domains}) == len(domains)
    return tuple(map(str, about.get("client_names", domains if is_domain else ())))


def notes(results: Path, study: StudyPlan) -> list[str]:
    """Return the notes on the partitions of a study, each once, with data set and partition.

    Args:
        results: Folder of the results.
        study: The study's plan.
    """
    titles = {run.partition_id: f"{run.dataset} / {run.partition}" for run in study.runs}
    titles_by_note: dict[str, list[str]] = {}
    for name, title in titles.items():
        partition = read(results, name, title)
        for note in partition.notes if partition else ():
            titles_by_note.setdefault(note, []).append(title)
    return [
        f"{first_of(with_note, 'partition')}: {note}" for note, with_note in titles_by_note.items()
    ]


def _counts(statistics: pd.DataFrame, classes: int) -> dict[str, np.ndarray]:
    clients = sorted(statistics["client"].unique())
    names = [f"class_{c}" for c in range(classes)]
    counts = {}
    for split in ("train", "val", "test"):
        rows = statistics[statistics["split"] == split].set_index("client")[names]
        counts[split] = rows.reindex(clients, fill_value=0).to_numpy(dtype=np.int64)
    return counts


def sizes_table(partitions: Sequence[Partition]) -> Table:
    """Return the table of sizes and label skew of partitions; without skew if labels are masks."""
    by_class = any(partition.by_class for partition in partitions)
    rows = []
    for partition in partitions:
        sizes = np.sum([counts.sum(axis=1) for counts in partition.counts.values()], axis=0)
        span = f"{sizes.min()}{DASH}{sizes.max()}"
        texts = [str(len(partition.clients)), str(sizes.sum()), span]
        if by_class:
            texts += [str(len(partition.classes)), *map(decimal, partition.skew.mean())]
        rows.append(_row(partition.title, texts))
    caption, note = "Partitions: samples of all splits together.", ""
    names = ["clients", "samples", "samples\nper client"]
    if by_class:
        note = (
            "Label entropy (nats), share of the most frequent class, and earth mover's distance "
            "(EMD) to the labels of all samples (0 to 2): of training splits, mean over clients."
        )
        names += ["classes", *SKEW.values()]
    return Table("partitions", caption, columns("Partition", *names), tuple(rows), note=note)


def distances_table(partition: Partition) -> Table | None:
    """Return the distances between the inputs of every two domains."""
    distances = partition.distances
    if distances is None or distances.empty:
        return None
    domains = list(dict.fromkeys([*distances["domain"], *distances["other"]]))
    values = {(a, b): decimal(d, 3) for a, b, d in distances.itertuples(index=False)}
    values |= {(b, a): text for (a, b), text in values.items()}
    rows = tuple(_row(a, [values.get((a, b), "") for b in domains]) for a in domains)
    caption = (
        f"{partition.title}: unbiased squared maximum mean discrepancy (MMD²) between the training "
        "inputs of two domains; 0: same distribution, 2: maximum."
    )
    return Table("distances", caption, columns("Domain", *domains), rows)


def _row(head: str, texts: Iterable[str]) -> Row:
    return Row(head, tuple(map(Cell, texts)))
