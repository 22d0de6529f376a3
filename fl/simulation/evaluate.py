"""Evaluation: the metrics of a model on each client's data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fl import trees
from fl.data.batches import Arrays
from fl.data.modality import MODALITY
from fl.method import REAL, Method, Predictor, View
from fl.network import Network
from fl.schema import METRIC_COLUMNS, PERSONAL, REWEIGHTED, UNSEEN
from fl.simulation.engine import State
from fl.task import Task
from fl.tasks.classification import CLASSIFICATION
from fl.term import Batch
from fl.trees import Tree

CHUNK = 1024
Look = Callable[[Tree, Batch], dict[str, Any]]
NO_SAMPLES = np.zeros(0, np.int64)
UNSEEN_VAL = "unseen-val"
OWN, UNION, BOTH = "own", "global", "reweighted"
"""Whose test samples a client's model is scored on: the client's own, or those of all clients; or
both, the latter by `fl.schema.REWEIGHTED`.
"""


@dataclass(frozen=True)
class Held:
    """The samples of every client, by split: ``held.samples["test"][client]`` is an int64 array.

    Unseen clients have their test samples in the split `UNSEEN`, their validation samples in
    `UNSEEN_VAL`, and none in ``val`` and ``test``.

    Attributes:
        away: Clients that take part in no round, in ascending order.
        everywhere: The test samples of all clients, where models are scored on them in addition to
            the client's own.
        modality: Of every client, int64 [clients], where they differ in it.
    """

    samples: Mapping[str, list[np.ndarray]]
    away: tuple[int, ...] = ()
    everywhere: np.ndarray | None = None
    modality: np.ndarray | None = None

    @classmethod
    def of(cls, table: pd.DataFrame, test: str = OWN, everybody: bool = False) -> Held:
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
        for name, part in table.groupby(split, sort=True):
            groups = dict(list(part.groupby("client")["sample"]))
            by_split[str(name)] = [
                np.sort(groups[k].to_numpy(np.int64)) if k in groups else np.zeros(0, np.int64)
                for k in range(clients)
            ]
        union = np.sort(np.concatenate(by_split.get("test", [np.zeros(0, np.int64)])))
        if test == UNION:
            by_split["test"] = [union if len(own) else own for own in by_split["test"]]
        without = () if everybody else tuple(away.tolist())
        modality = None
        if MODALITY in table:
            modality = table.groupby("client")[MODALITY].first().to_numpy(np.int64)
        return cls(by_split, without, union if test == BOTH else None, modality)

    def of_splits(self, names: str, client: int) -> np.ndarray:
        """A client's samples of a split, or of several: ``train+val``."""
        names = "train" if names == REAL and REAL not in self.samples else names
        split, *others = names.split("+")
        wanted = [split, *others, *([UNSEEN_VAL] if "val" in others else [])]
        found = [self.samples[one][client] for one in wanted if one in self.samples]
        return found[0] if len(found) == 1 else np.sort(np.concatenate([NO_SAMPLES, *found]))

    def of_modality(self, modality: int) -> Held:
        """The same clients, but only those of one modality hold samples and take part."""
        assert self.modality is not None
        others = np.flatnonzero(self.modality != modality).tolist()
        samples = {
            split: [np.zeros(0, np.int64) if k in others else own for k, own in enumerate(held)]
            for split, held in self.samples.items()
        }
        return replace(self, samples=samples, away=tuple(sorted({*self.away, *others})))

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
    task: Task = CLASSIFICATION,
) -> pd.DataFrame:
    """Loss and the task's metrics of every client, in the columns of `METRIC_COLUMNS`.

    Each view of the method is one ``stage``. A split without samples of a client gives no row, and
    neither does the personal stage of a client that never takes part, because it has no model.
    """
    rows = []
    ask = partial(
        _View,
        network=network,
        state=state,
        arrays=arrays,
        held=held,
        classes=classes,
        task=task,
    )
    for stage, view in method.views.items():
        seen = ask(view, stage)
        for split in (s for s in splits if s in held.samples):
            for client, samples in enumerate(held.samples[split]):
                if not len(samples) or not seen.serves(client):
                    continue
                rows += [
                    (round_, client, split, stage, metric, value, len(samples))
                    for metric, value in seen.scores(client, samples).items()
                ]
                if split == "test" and held.everywhere is not None:
                    value, size = seen.reweighted(client, held.everywhere), len(held.everywhere)
                    # None where no test sample is of a class that the client trains on.
                    if not np.isnan(value):
                        rows.append((round_, client, split, stage, REWEIGHTED, value, size))
    return as_rows(rows)


class _View:
    """One view of a method after a round; scores samples client by client."""

    def __init__(
        self,
        view: View,
        stage: str,
        *,
        network: Network,
        state: State,
        arrays: Arrays,
        held: Held,
        classes: int,
        task: Task,
    ) -> None:
        self._view, self._network, self._state = view, network, state
        self._arrays, self._held, self._classes = arrays, held, classes
        self._task = task
        self._predictor = view if isinstance(view, Predictor) else None
        self._shared = None if stage == PERSONAL else view(state.server, None)
        self._last: tuple[np.ndarray, dict[str, float]] | None = None
        self._everywhere: tuple[np.ndarray, np.ndarray] | None = None

    def serves(self, client: int) -> bool:
        """Whether the client has a model: one that never takes part has none of its own."""
        everybody = self._shared is not None or (self._predictor and self._predictor.everybody)
        return bool(everybody) or client not in self._held.away

    def scores(self, client: int, samples: np.ndarray) -> dict[str, float]:
        """Metrics of the client's model, or of the shared one, on the samples."""
        remembers = self._predictor is not None and self._predictor.look is not None
        if self._shared is None or remembers:
            return self._scores(client, samples)
        # One model on the same samples as for the client before scores the same.
        if self._last is None or self._last[0] is not samples:
            self._last = samples, self._scores(client, samples)
        return self._last[1]

    def reweighted(self, client: int, samples: np.ndarray) -> float:
        """Accuracy on the samples, each class by its share among the client's training samples."""
        remembers = self._predictor is not None and self._predictor.look is not None
        if self._shared is None or remembers or self._everywhere is None:
            seen = self._looked(client, samples)
            self._everywhere = seen["correct"].cpu().numpy(), seen["label"].cpu().numpy()
        own = torch.from_numpy(self._held.samples["train"][client]).to(self._arrays.device)
        held = np.bincount(self._arrays.labels(own).cpu().numpy(), minlength=self._classes)
        return reweighted_accuracy(*self._everywhere, held)

    def _scores(self, client: int, samples: np.ndarray) -> dict[str, float]:
        return self._task.conclude(self._looked(client, samples), self._classes)

    @torch.no_grad()
    def _looked(self, client: int, samples: np.ndarray) -> dict[str, Tensor]:
        """What the task computes for each sample."""
        own = None if self._shared else self._state.client(client, self._arrays.device)
        variables = self._shared or self._view(self._state.server, own)
        outputs_of, seen = self._outputs(variables, client), []
        for begin in range(0, len(samples), self._task.chunk):
            chunk = samples[begin : begin + self._task.chunk]
            index = torch.from_numpy(chunk).to(self._arrays.device)
            outputs = outputs_of(self._arrays.inputs(index))
            seen.append(self._task.look(outputs, self._arrays.labels(index)))
        return trees.concatenate(seen)

    def _outputs(self, variables: Tree, client: int) -> Callable[[Tensor], Tensor]:
        """The outputs of one client's model."""
        predictor = self._predictor
        if predictor is None:
            return lambda x: (
                self._network.eval(variables["params"], variables["buffers"], x).outputs
            )
        memory: dict[str, Any] = {}
        if predictor.look is not None:
            known = {
                split: self._known(predictor.look, variables, self._held.samples[split][client])
                for split in predictor.remembers
                if split in self._held.samples and len(self._held.samples[split][client])
            }
            memory = predictor.recall(variables, known)
        return lambda x: predictor.predict(variables, memory, x)

    def _known(self, look: Look, variables: Tree, samples: np.ndarray) -> dict[str, Any]:
        found = []
        for begin in range(0, len(samples), CHUNK):
            index = torch.from_numpy(samples[begin : begin + CHUNK]).to(self._arrays.device)
            found.append(look(variables, self._arrays.batch(index, torch.ones_like(index))))
        return trees.concatenate(found)


def as_rows(rows: list[tuple[int, int, str, str, str, float, int]]) -> pd.DataFrame:
    """A table in the columns and types of `METRIC_COLUMNS`."""
    table = pd.DataFrame(rows, columns=list(METRIC_COLUMNS))
    return table.astype({"round": "int32", "client": "int32", "value": "float64", "n": "int64"})


def reweighted_accuracy(correct: np.ndarray, labels: np.ndarray, held: np.ndarray) -> float:
    """sum_c p_c right_c / sum_c p_c n_c, with p_c the share of class c in ``held``.

    As in the released code of FedSaC, a sample counts as much as its class does for the client.

    Args:
        correct: 0 or 1 per sample, [n].
        labels: The class of each sample, [n].
        held: A client's training samples by class.

    Returns:
        NaN if no sample is of a class that the client holds.
    """
    there = np.bincount(labels, minlength=len(held))[: len(held)] * held
    right = np.bincount(labels, weights=correct, minlength=len(held))[: len(held)] * held
    return float(right.sum() / there.sum()) if there.sum() else float("nan")
