"""What a model scores on each client's data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from fl.data.batches import Arrays
from fl.engine import State
from fl.method import Method
from fl.network import Network
from fl.schema import METRIC_COLUMNS, PERSONAL, UNSEEN
from fl.trees import Tree

CHUNK = 1024
OWN, UNION = "own", "global"
"""Whose test samples a client's model is scored on: the client's own, or those of all clients."""


@dataclass(frozen=True)
class Held:
    """The samples of every client, by split: ``held.samples["test"][client]`` is an int64 array.

    Clients that are unseen have their test samples in the split `UNSEEN`, and none in ``val`` and
    ``test``. away: clients that take part in no round, in ascending order.
    """

    samples: Mapping[str, list[np.ndarray]]
    away: tuple[int, ...] = ()

    @classmethod
    def of(cls, table: pd.DataFrame, test: str = OWN, everybody: bool = False) -> Held:
        """From a partition table; with ``test`` `UNION`, every client that has test samples has
        those of all. ``everybody``: unseen clients take part as well.
        """
        clients = int(table["client"].max()) + 1
        unseen = np.zeros(len(table), bool)
        if UNSEEN in table:
            unseen = table[UNSEEN].to_numpy(bool)
        away = np.unique(table["client"].to_numpy()[unseen])
        split = table["split"].mask(unseen & (table["split"] == "test").to_numpy(bool), UNSEEN)
        chosen = ~unseen | (split != "val").to_numpy(bool)
        by_split = {}
        for name, part in table[chosen].groupby(split[chosen], sort=True):
            groups = dict(list(part.groupby("client")["sample"]))
            by_split[str(name)] = [
                np.sort(groups[k].to_numpy(np.int64)) if k in groups else np.zeros(0, np.int64)
                for k in range(clients)
            ]
        if test == UNION:
            own = by_split["test"]
            union = np.sort(np.concatenate(own))
            by_split["test"] = [union if len(samples) else samples for samples in own]
        return cls(by_split, () if everybody else tuple(away.tolist()))

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.samples["train"])

    @property
    def participants(self) -> np.ndarray:
        """The clients that may take part in rounds."""
        return np.setdiff1d(np.arange(self.clients), self.away)


def evaluate(
    method: Method,
    network: Network,
    state: State,
    arrays: Arrays,
    held: Held,
    round_: int,
    classes: int,
    splits: tuple[str, ...] = ("val", "test", UNSEEN),
) -> pd.DataFrame:
    """Loss, accuracy and balanced accuracy of every client, in the columns of `METRIC_COLUMNS`.

    Each view of the method is one ``stage``. Splits that a client has no samples of give no row,
    and neither does the personal stage of a client that never takes part: it has no model.
    """
    rows = []
    for stage, view in method.views.items():
        shared = None if stage == PERSONAL else view(state.server, None)
        for split in (s for s in splits if s in held.samples):
            last, scores = None, {}
            for client, samples in enumerate(held.samples[split]):
                if not len(samples) or (shared is None and client in held.away):
                    continue
                # One model on the same samples as for the client before scores the same.
                if shared is None or samples is not last:
                    own = None if shared else state.client(client, arrays.device)
                    variables = shared or view(state.server, own)
                    scores = _scores(network, variables, arrays, samples, classes)
                last = samples
                rows += [
                    (round_, client, split, stage, metric, value, len(samples))
                    for metric, value in scores.items()
                ]
    return as_rows(rows)


def as_rows(rows: list[tuple[int, int, str, str, str, float, int]]) -> pd.DataFrame:
    """A table in the columns and types of `METRIC_COLUMNS`."""
    table = pd.DataFrame(rows, columns=list(METRIC_COLUMNS))
    return table.astype({"round": "int32", "client": "int32", "value": "float64", "n": "int64"})


@torch.no_grad()
def _scores(
    network: Network, variables: Tree, arrays: Arrays, samples: np.ndarray, classes: int
) -> dict[str, float]:
    losses, predictions = [], []
    for begin in range(0, len(samples), CHUNK):
        index = torch.from_numpy(samples[begin : begin + CHUNK]).to(arrays.device)
        x = arrays.inputs(index)
        outputs = network.eval(variables["params"], variables["buffers"], x).outputs
        losses.append(F.cross_entropy(outputs, arrays.labels(index), reduction="none"))
        predictions.append(outputs.argmax(-1))
    labels = arrays.labels(torch.from_numpy(samples).to(arrays.device))
    correct = (torch.cat(predictions) == labels).double()
    return {
        "loss": float(torch.cat(losses).double().mean()),
        "accuracy": float(correct.mean()),
        "balanced_accuracy": balanced_accuracy(
            correct.cpu().numpy(), labels.cpu().numpy(), classes
        ),
    }


def balanced_accuracy(correct: np.ndarray, labels: np.ndarray, classes: int) -> float:
    """The mean over the classes that occur of the share of their samples that are right.

    correct: 0 or 1 per sample, [n]; labels: [n].
    """
    held = np.bincount(labels, minlength=classes)
    right = np.bincount(labels, weights=correct, minlength=classes)
    return float((right[held > 0] / held[held > 0]).mean())
