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
from fl.schema import METRIC_COLUMNS, PERSONAL
from fl.trees import Tree

CHUNK = 1024


@dataclass(frozen=True)
class Held:
    """The samples of every client, by split: ``held.samples["test"][client]`` is an int64 array."""

    samples: Mapping[str, list[np.ndarray]]

    @classmethod
    def of(cls, table: pd.DataFrame) -> Held:
        """From a partition table."""
        clients = int(table["client"].max()) + 1
        by_split = {}
        for split, part in table.groupby("split", sort=True):
            groups = dict(list(part.groupby("client")["sample"]))
            by_split[str(split)] = [
                np.sort(groups[k].to_numpy(np.int64)) if k in groups else np.zeros(0, np.int64)
                for k in range(clients)
            ]
        return cls(by_split)

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.samples["train"])


def evaluate(
    method: Method,
    network: Network,
    state: State,
    arrays: Arrays,
    held: Held,
    round_: int,
    classes: int,
    splits: tuple[str, ...] = ("val", "test"),
) -> pd.DataFrame:
    """Loss, accuracy and balanced accuracy of every client, in the columns of `METRIC_COLUMNS`.

    Each view of the method is one ``stage``. Splits that a client has no samples of give no row.
    """
    rows = []
    for stage, view in method.views.items():
        shared = None if stage == PERSONAL else view(state.server, None)
        for split in (s for s in splits if s in held.samples):
            for client, samples in enumerate(held.samples[split]):
                if len(samples):
                    own = None if shared else state.client(client, arrays.device)
                    variables = shared or view(state.server, own)
                    scores = _scores(network, variables, arrays, samples, classes)
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
