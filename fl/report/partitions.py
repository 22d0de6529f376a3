"""Who holds how much: a partition as ``results/partitions/<id>/`` has it, and its tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from fl.base import parquet
from fl.base.errors import DataError
from fl.base.files import parse_json
from fl.base.schema import SERVER
from fl.plan.study_plan import StudyPlan
from fl.report.cells import DASH, Cell, Row, Table, columns, decimal

SKEW = {"label_entropy": "label\nentropy", "majority_share": "majority\nshare", "emd": "EMD"}
"""Of a client's labels: a column of statistics, and what tables call it."""


@dataclass(frozen=True)
class Partition:
    """The clients of a partition and the samples that they hold.

    Attributes:
        counts: By split, samples by client and class, in the order of ``clients``.
        unseen: The clients that are held out of training.
        modality: Of every client, where they differ in it.
        domain: Of every client, where data have domains.
        distances: Between domains (`fl.data.partitioning`).
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
        """By client, the columns of `SKEW` of its training split."""
        train = self.statistics[self.statistics["split"] == "train"].set_index("client")
        return train[list(SKEW)].reindex(self.clients)

    def majority(
        self, together: bool = False, population: bool = False, unseen: bool = False
    ) -> pd.Series:
        """Per client, the share of test samples in its most frequent training class.

        Args:
            together: Over the test samples of all trained clients instead of the client's own.
            population: In the most frequent training class of all trained clients instead.
            unseen: Whether of clients that are held out of training, instead of trained ones.
        """
        train, test = self.counts["train"], self.counts["test"]
        is_unseen = np.isin(self.clients, self.unseen)
        if together:
            test = np.broadcast_to(test[~is_unseen].sum(axis=0), test.shape)
        if population:
            train = np.broadcast_to(train[~is_unseen].sum(axis=0), train.shape)
        hits = test[np.arange(len(test)), train.argmax(axis=1)]
        size = test.sum(axis=1)
        shares = np.where(size > 0, hits / np.maximum(size, 1), np.nan)
        return pd.Series(shares, self.clients)[is_unseen if unseen else ~is_unseen]


def read(results: Path, name: str, title: str) -> Partition | None:
    """Read a partition's facts; None if its folder does not exist.

    Args:
        results: Folder of the results.
        name: Id of the partition.
        title: The partition's name in the report.
    """
    folder = results / "partitions" / name
    if not (folder / "statistics.parquet").exists() or not (folder / "partition.json").exists():
        return None
    try:
        about = parse_json((folder / "partition.json").read_bytes())
        statistics = parquet.read(folder / "statistics.parquet")[0]
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
            distances=parquet.read(distances)[0] if distances.exists() else None,
        )
    except (OSError, ValueError, KeyError, TypeError, DataError) as error:
        raise DataError(
            f"{folder}: the partition's statistics cannot be read ({error}); "
            "remove the folder and partition again"
        ) from error


def notes(results: Path, study: StudyPlan) -> list[str]:
    """Return the notes on the partitions of a study, each with the data set and partition.

    Args:
        results: Folder of the results.
        study: The study's plan.
    """
    titles = {run.partition_id: f"{run.dataset} / {run.partition}" for run in study.runs}
    statistics = ((title, read(results, name, title)) for name, title in titles.items())
    return [
        f"{title}: {note}"
        for title, partition_statistics in statistics
        if partition_statistics
        for note in partition_statistics.notes
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
    """Sizes and label skew of every partition, in one line each; no skew where there are masks."""
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
