"""What runs will cost, from what runs like them have cost here."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from fl import materials
from fl.errors import FedloomError
from fl.store import Store
from fl.training import Training

LIKENESS = (("dataset", "model", "method"), ("dataset", "model"), ("model",))
"""What two runs must share for the one to tell the other's time, the most telling first."""


def client_steps(spec: Mapping[str, Any]) -> int:
    """Local steps of all clients over a whole run, as the sizes of its data set tell."""
    training = Training(**spec["training"])
    _, dataset = materials.entry_of("data set", spec["dataset"])
    clients = spec["partition"].get("clients") or dataset.natural or 1
    share = 1 - sum(materials.share(spec["partition"], split) for split in ("val", "test"))
    epochs = training.local_epochs or 1
    samples = (dataset.size or 0) * share / clients
    local = training.local_steps or epochs * samples / training.batch_size
    participants = max(1, round(training.participation * clients))
    return round(training.rounds * participants * max(local, 1))


class Rates:
    """Seconds per client step, measured by the runs in a store."""

    def __init__(self, store: Store) -> None:
        seen: dict[str, list[float]] = {}
        for run in store.runs():
            record = store.record(run)
            if record["state"] != "complete":
                continue
            try:
                rate = record["seconds"] / client_steps(record["spec"])
            except (FedloomError, KeyError, TypeError):
                continue  # A shared store may hold runs of a plugin or of keys not known here.
            for keys in LIKENESS:
                seen.setdefault(_key(record["spec"], keys), []).append(rate)
        self._rates = {key: statistics.median(rates) for key, rates in seen.items()}

    def seconds(self, specs: Iterable[Mapping[str, Any]]) -> float | None:
        """An estimate for runs one after another; None where no run like one of them is known."""
        total = 0.0
        for spec in specs:
            rate = next(
                (self._rates[_key(spec, k)] for k in LIKENESS if _key(spec, k) in self._rates), None
            )
            if rate is None:
                return None
            total += rate * client_steps(spec)
        return total


def _key(spec: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    return repr([(key, spec[key]["name"]) for key in keys])
