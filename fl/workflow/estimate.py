"""The cost of runs, estimated from similar runs in the store."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fl.api.training import Training
from fl.base import registry
from fl.base.declaration import declaration_of
from fl.base.errors import DataError, FedloomError, Location
from fl.base.folders import path_of
from fl.base.hashes import digest
from fl.base.specs import ComponentKey, Spec
from fl.data import partition_table
from fl.data.scheme import CommonKeys
from fl.plan.bundle import Bundle
from fl.plan.run_spec import RunSpec
from fl.store import run_check
from fl.store.store import Store

SHARED_COMPONENTS: tuple[tuple[ComponentKey, ...], ...] = (
    ("dataset", "model", "method"),
    ("dataset", "model"),
    ("model",),
)
"""Components that two runs must share for one to tell the time of the other, the best first.

What a study adds to the method they always share: a term can cost many times what the method does.
"""

BYTES_PER_ROW = 200
"""Most bytes of memory for a row of metrics while a checkpoint of all is written."""

METRICS_PER_CLIENT = 3
"""Metrics of classification; a mask has as many."""


class ClientCounts(NamedTuple):
    """Numbers of clients, of those held out of training, and of all training samples."""

    clients: int
    unseen: int
    samples: float


def large_metrics(bundle: Bundle) -> tuple[int, int] | None:
    """Return rows of metrics of a bundle and the MiB that they take, if these are many.

    Many is more than half of what its job asks for. None, too, if only the data can tell how many
    clients there are.
    """
    spec = bundle.runs[0].spec
    training = Training(**spec["training"])
    partition = RunSpec(spec).partition
    clients = partition.clients or 0
    clients = min(clients, training.evaluate_clients or clients)
    evaluations = math.ceil(training.rounds / training.evaluate_every)
    splits = 1 + partition.has_split("val")
    rows = len(bundle.runs) * evaluations * clients * splits * METRICS_PER_CLIENT
    limit = bundle.execution.memory_mb * 2**20 / 2
    if 2 * rows * BYTES_PER_ROW < limit:
        return None  # What a method declares would not matter; reading it imports torch.
    method = registry.find("method", spec["method"]["name"], Location("the spec"))
    rows *= len(declaration_of(method.target).stages)
    size = rows * BYTES_PER_ROW
    return (rows, size // 2**20) if size > limit else None


def client_steps(spec: Spec) -> int:
    """Return local steps of all clients over a whole run, by its spec, before there is any data.

    Unseen clients are left out, also where a method lets them train.
    """
    training = Training(**spec["training"])
    counts = _client_counts(RunSpec(spec))
    epochs = training.local_epochs or 1
    per_epoch = counts.samples / counts.clients / training.batch_size
    local = training.local_steps or epochs * per_epoch
    participants = training.participants(counts.clients - counts.unseen)
    return round(training.rounds * participants * max(local, 1))


def _client_counts(run: RunSpec) -> ClientCounts:
    """Return the numbers of clients and samples of a run's partition.

    The sizes of a published split are known only from the data. Its share is assumed to be the
    scheme's default, and no client is assumed to be unseen by it. Parts of the clients are assumed
    to be of the sizes that they have without blocks.
    """
    scheme, partition = run.spec["partition"], run.partition
    if "path" in scheme:
        path = path_of(scheme["path"])
        return _table_counts(path, path.stat().st_mtime_ns)
    clients = max(1, round((partition.clients_of_all_parts or 1) * partition.part_share))
    unseen = scheme.get("unseen", 0)
    if not isinstance(unseen, int):
        unseen = 0 if isinstance(unseen, str) else round(unseen * clients)
    followed = [key for key in ("val", "test") if isinstance(scheme.get(key), str)]
    pool = 1 - sum(getattr(CommonKeys, key) for key in followed)
    train = 1 - sum(partition.share(key) for key in ("val", "test", "server"))
    samples = (run.dataset.size or 0) * pool * train * partition.part_share
    return ClientCounts(clients, unseen, samples)


@cache
def _table_counts(path: Path, changed: int) -> ClientCounts:
    """Return the numbers of a user's own table, read again if its time ``changed``."""
    table = partition_table.read_users_table({"path": str(path)})
    samples = float((table["split"] == "train").sum())
    return ClientCounts(
        table["client"].nunique(), len(partition_table.unseen_clients(table)), samples
    )


class Rates:
    """Seconds of a process per client step, measured by the runs in a store.

    Attributes:
        specs: Digests of the specs of all these runs.
        damaged: Runs whose records cannot be read.
    """

    def __init__(self, store: Store) -> None:
        rates: dict[str, list[float]] = {}
        self.specs: set[str] = set()
        self.damaged: list[str] = []
        for run in store.runs():
            try:
                record = store.record(run)
            except DataError:
                self.damaged.append(run)
                continue
            try:
                run_check.check_keys(record, Location(run))
                self.specs.add(digest(record["spec"]))
                processes = record["execution"].get("processes", 1)
                rate = processes * record["seconds"] / client_steps(record["spec"])
            except (FedloomError, OSError, KeyError, TypeError, ArithmeticError):
                continue  # A shared store may hold runs of a plugin or of keys not known here.
            if record["state"] != "complete":
                continue
            for components in SHARED_COMPONENTS:
                rates.setdefault(_key(record["spec"], components), []).append(rate)
        self._rates = {key: statistics.median(several) for key, several in rates.items()}

    @property
    def remarks(self) -> list[str]:
        """A line for each damaged run."""
        advice = "Try: `fedloom store verify --remove`, which removes it"
        return [f"{run}: its run.json is damaged and is ignored. {advice}" for run in self.damaged]

    def seconds(self, specs: Iterable[Spec]) -> float | None:
        """Return an estimate for runs one after another, each by one process; None if unknown."""
        total = 0.0
        for spec in specs:
            keys = (_key(spec, components) for components in SHARED_COMPONENTS)
            rate = next((self._rates[key] for key in keys if key in self._rates), None)
            if rate is None:
                return None
            try:
                total += rate * client_steps(spec)
            except (DataError, OSError):
                return None  # The user's table that it is planned on does not exist any more.
        return total


MAX_RATES_SHARE = 1 / 100
"""Largest share of the time in which the records of all stored runs are read for estimates."""


class LatestRates:
    """`Rates` of a store that is read again and again, in `MAX_RATES_SHARE` of the time."""

    def __init__(self, store: Store) -> None:
        self._store, self._next_time = store, 0.0

    def read(self) -> Rates:
        """Return the rates, measured now or some time ago."""
        start = time.monotonic()
        if start >= self._next_time:
            self._rates = Rates(self._store)
            self._next_time = start + (time.monotonic() - start) / MAX_RATES_SHARE
        return self._rates


def _key(spec: Spec, components: tuple[ComponentKey, ...]) -> str:
    # Numbers such as weights and rates cost nothing; what a term looks at, and how often, does.
    added = [
        [key, {k: value for k, value in values.items() if not isinstance(value, float)}]
        for key, _, values in registry.added_components(spec)
    ]
    names = [(component, spec[component]["name"]) for component in components]
    return json.dumps([names, *added], sort_keys=True)
