"""What runs will cost, estimated from similar runs in the store."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fl.api.training import Training
from fl.base import registry
from fl.base.declaration import declared
from fl.base.digest import digest
from fl.base.errors import DataError, FedloomError, Location
from fl.base.places import path_of
from fl.data import holdings
from fl.data.scheme import Common
from fl.plan.bundle import Bundle
from fl.plan.scenario import clients_of, has_split, split_share
from fl.store import run_check
from fl.store.store import Store

LIKENESS = (("dataset", "model", "method"), ("dataset", "model"), ("model",))
"""What two runs must share for the one to tell the other's time, the most telling first.

What a study adds to the method they always share: a term can cost many times what that does.
"""


ROW = 200
"""Bytes of memory that a row of metrics takes at most, while a checkpoint of all is written."""

METRICS = 3
"""Of classification; a mask has as many."""


def crowded(bundle: Bundle) -> tuple[int, int] | None:
    """Rows of metrics that the runs of a bundle have together and MB that they take, if these are
    more than half of what its job asks for.

    None, too, where only the data say how many clients there are.
    """
    spec = bundle.runs[0].spec
    training = Training(**spec["training"])
    clients = clients_of(spec["partition"], spec["dataset"]) or 0
    clients = min(clients, training.evaluate_clients or clients)
    evaluations = math.ceil(training.rounds / training.evaluate_every)
    splits = 1 + has_split(spec["partition"], "val")
    rows = len(bundle.runs) * evaluations * clients * splits * METRICS
    limit = bundle.execution.memory_mb * 2**20 / 2
    if 2 * rows * ROW < limit:
        return None  # What a method declares would not matter; reading it imports torch.
    method = registry.find("method", spec["method"]["name"], Location("the spec"))
    rows *= len(declared(method.target).stages)
    return (rows, rows * ROW // 2**20) if rows * ROW > limit else None


def client_steps(spec: Mapping[str, Any]) -> int:
    """Local steps of all clients over a whole run, by its spec, before there is any data.

    Unseen clients are left out, also where a method lets them train.
    """
    training = Training(**spec["training"])
    clients, unseen, samples = _held(spec["partition"], spec["dataset"])
    epochs = training.local_epochs or 1
    local = training.local_steps or epochs * samples / clients / training.batch_size
    participants = max(1, round(training.participation * (clients - unseen)))
    return round(training.rounds * participants * max(local, 1))


def _held(scheme: Mapping[str, Any], dataset: Mapping[str, Any]) -> tuple[int, int, float]:
    """How many clients there are, how many of them unseen, and the train samples of them all.

    The sizes of a published split are known only from the data. Its share is assumed to be the
    scheme's default, and no client is assumed to be unseen by it.
    """
    if "path" in scheme:
        path = path_of(scheme["path"])
        return _counted(path, path.stat().st_mtime_ns)
    _, data = registry.entry_of("data set", dataset)
    clients = clients_of(scheme, dataset) or 1
    unseen = scheme.get("unseen", 0)
    if not isinstance(unseen, int):
        unseen = 0 if isinstance(unseen, str) else round(unseen * clients)
    followed = [key for key in ("val", "test") if isinstance(scheme.get(key), str)]
    pool = 1 - sum(getattr(Common, key) for key in followed)
    train = 1 - sum(split_share(scheme, key) for key in ("val", "test", "server"))
    return clients, unseen, (data.size or 0) * pool * train


@cache
def _counted(path: Path, changed: int) -> tuple[int, int, float]:
    """As `_held`, for a table that a user brings."""
    table = holdings.read(path)
    train = (table["split"] == "train").sum()
    return table["client"].nunique(), len(holdings.unseen(table)), float(train)


class Rates:
    """Seconds of a process per client step, measured by the runs in a store.

    Attributes:
        specs: Digests of the specs of all these runs.
        damaged: The runs whose records cannot be read.
    """

    def __init__(self, store: Store) -> None:
        seen: dict[str, list[float]] = {}
        self.specs: set[str] = set()
        self.damaged: list[str] = []
        for run in store.runs():
            try:
                record = store.record(run)
            except DataError:
                self.damaged.append(run)
                continue
            try:
                run_check.check_shape(record, Location(run))
                self.specs.add(digest(record["spec"]))
                processes = record["execution"].get("processes", 1)
                rate = processes * record["seconds"] / client_steps(record["spec"])
            except (FedloomError, OSError, KeyError, TypeError, ArithmeticError):
                continue  # A shared store may hold runs of a plugin or of keys not known here.
            if record["state"] != "complete":
                continue
            for keys in LIKENESS:
                seen.setdefault(_key(record["spec"], keys), []).append(rate)
        self._rates = {key: statistics.median(rates) for key, rates in seen.items()}

    @property
    def remarks(self) -> list[str]:
        """A line for each damaged run."""
        remedy = "`python -m fl store verify --remove` removes it"
        return [f"{run}: its run.json is damaged; passed over; {remedy}" for run in self.damaged]

    def seconds(self, specs: Iterable[Mapping[str, Any]]) -> float | None:
        """An estimate for runs one after another, each by one process; None if none is known."""
        total = 0.0
        for spec in specs:
            rate = next(
                (self._rates[_key(spec, k)] for k in LIKENESS if _key(spec, k) in self._rates), None
            )
            if rate is None:
                return None
            try:
                total += rate * client_steps(spec)
            except (DataError, OSError):
                return None  # The user's table that it is planned on is not there any more.
        return total


def _key(spec: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    # Numbers such as weights and rates cost nothing; what a term looks at, and how often, does.
    added = [
        [key, {k: value for k, value in its.items() if not isinstance(value, float)}]
        for key, _, its in registry.added(spec)
    ]
    return json.dumps([[(key, spec[key]["name"]) for key in keys], *added], sort_keys=True)
