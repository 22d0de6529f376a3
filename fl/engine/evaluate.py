"""Evaluation: metrics of models on the samples of each client.

The shared model is evaluated on the samples of all clients in one pass. Personal models are
stacked: several clients with all of their samples at a time (`ViewOutputs`). Metrics are
computed by client afterwards. Compared with clients that are scored one after another, accuracy is
identical, unless the two largest outputs of a sample are equal except for rounding. Losses and
means over classes are equal to rounding, because sums may be computed in another order. The same
state gives exactly the same numbers.

A pass through the shared model contains samples of many clients, and a stacked pass many clients'
models. If outputs of a sample depend on other samples (a `Predictor` without `is_per_sample`, or
normalisation by the batch in evaluation mode), each client's samples of a split are a separate
pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import Method, Predictor, View
from fl.api.task import Task
from fl.api.tasks.classification import by_class
from fl.api.trees import Tree
from fl.base.schema import (
    ERRORS,
    METRIC_COLUMNS,
    PARTIAL_METRICS,
    PERSONAL,
    REWEIGHTED,
    UNSEEN,
)
from fl.engine.client_data import ClientData
from fl.engine.run_setup import RunSetup
from fl.engine.state import State

MetricValues = dict[str, np.ndarray]
"""By metric, an array [portions, ...], mostly of one value for each portion."""

SCORED_SPLITS = ("val", "test", UNSEEN)
"""The splits that are evaluated, and whose predictions a run stores."""

COLUMN_TYPES = {"round": np.int32, "client": np.int32, "value": np.float64, "n": np.int64}


def evaluate(
    setup: RunSetup, method: Method, state: State, data: ClientData, round_: int
) -> pd.DataFrame:
    """Compute loss and the task's metrics of every client.

    Args:
        setup: Network, samples and task of the run.
        method: The method; each of its views is a ``stage``.
        state: The state after the round.
        data: The samples of each client that are scored.
        round_: Number of the round.

    Returns:
        A table with the columns of `fl.base.schema.METRIC_COLUMNS`. A client without samples of a
        split has no row for it, nor for a metric that is not defined on its samples. A client that
        never takes part has no personal stage, because it has no own model.
    """

    def compute_metrics(values: Tree, sizes: np.ndarray) -> MetricValues:
        metrics = setup.task.conclude(values, sizes, setup.classes)
        unit = setup.arrays.label_sd
        return {**metrics, **{name: metrics[name] * unit for name in ERRORS if name in metrics}}

    tables = []
    for stage, view in method.views.items():
        models = ViewOutputs(view, stage == PERSONAL, setup, state, data, setup.task)
        portions = [
            Portion(client, split, samples)
            for split in SCORED_SPLITS
            for client, samples in data.clients_with_samples(split)
            if models.serves(client)
        ]
        if portions:
            metrics = score_portions(models, portions, compute_metrics)
            if data.union_test_samples is not None:
                metrics[REWEIGHTED] = _reweighted_accuracy(models, portions, setup, data)
            tables.append(_stage_table(round_, stage, portions, metrics, data))
    if len(tables) == 1:
        return tables[0]
    return pd.concat(tables, ignore_index=True) if tables else metrics_table([])


def _reweighted_accuracy(
    models: ViewOutputs, portions: list[Portion], setup: RunSetup, data: ClientData
) -> np.ndarray:
    """Return the accuracy on all clients' test samples, weighted by each client's classes.

    Each class has the weight of its share among the client's training samples. The result is
    [portions]; it is NaN for other splits than ``test``, and if no sample has a class on which the
    client trains.
    """
    accuracy, arrays, classes = np.full(len(portions), np.nan), setup.arrays, setup.classes
    test_indices = [i for i, portion in enumerate(portions) if portion.split == "test"]
    if test_indices and data.union_test_samples is not None:
        union_portions = [
            Portion(portions[i].client, "test", data.union_test_samples) for i in test_indices
        ]
        counts = score_portions(models, union_portions, partial(_class_counts, classes=classes))
        for row, i in enumerate(test_indices):
            train = data.samples["train"][portions[i].client]
            labels = arrays.labels_of(train)
            train_counts = np.bincount(labels, minlength=classes)
            accuracy[i] = weighted_accuracy(
                counts["correct"][row], counts["total"][row], train_counts
            )
    return accuracy


def _class_counts(values: Tree, sizes: np.ndarray, classes: int) -> MetricValues:
    """Count correct and all samples of each portion by class, [portions, classes] each."""
    is_correct, label = (values[key].cpu().numpy() for key in ("correct", "label"))
    correct, total = by_class(is_correct, label, sizes, classes)
    return {"correct": correct, "total": total}


def _stage_table(
    round_: int, stage: str, portions: list[Portion], metrics: MetricValues, data: ClientData
) -> pd.DataFrame:
    """Return a row for every portion and metric, portion after portion."""
    names, grid = list(metrics), np.stack(list(metrics.values()), axis=1)
    n = np.repeat([[len(portion.samples)] for portion in portions], len(names), axis=1)
    if REWEIGHTED in metrics and data.union_test_samples is not None:
        n[:, names.index(REWEIGHTED)] = len(data.union_test_samples)
    has_value = ~(np.isnan(grid) & np.isin(names, PARTIAL_METRICS))
    row, column = np.nonzero(has_value)
    splits = list(dict.fromkeys(portion.split for portion in portions))
    split = np.array([splits.index(portion.split) for portion in portions])
    return _typed_table(
        {
            "round": np.full(len(row), round_),
            "client": np.array([portion.client for portion in portions])[row],
            "split": _text_column(split[row], splits),
            "stage": _text_column(np.zeros(len(row), np.int64), [stage]),
            "metric": _text_column(column, names),
            "value": grid[has_value],
            "n": n[has_value],
        }
    )


def weighted_accuracy(correct: np.ndarray, total: np.ndarray, weights: np.ndarray) -> float:
    """Compute sum_c w_c correct_c / sum_c w_c total_c.

    As in the released code of FedSaC, a sample has the weight of its class at the client.

    Args:
        correct: Correctly predicted samples of each class, [classes].
        total: Samples of each class, [classes].
        weights: Weights w of the classes: a client's training samples by class, [classes].

    Returns:
        The accuracy; NaN if no sample has a class with a weight.
    """
    denominator = (total * weights).sum()
    return float((correct * weights).sum() / denominator) if denominator else float("nan")


def metrics_table(
    rows: Sequence[tuple[int, int, str, str, str, float, int]],
) -> pd.DataFrame:
    """Return a table of metrics from rows in the order of `fl.base.schema.METRIC_COLUMNS`."""
    values = list(zip(*rows, strict=True)) or [()] * len(METRIC_COLUMNS)
    columns: dict[str, Any] = dict(zip(METRIC_COLUMNS, values, strict=True))
    for name in columns.keys() - COLUMN_TYPES.keys():
        texts = list(dict.fromkeys(columns[name]))
        code_by_text = {text: code for code, text in enumerate(texts)}
        codes = np.array([code_by_text[text] for text in columns[name]], np.int64)
        columns[name] = _text_column(codes, texts)
    return _typed_table(columns)


def losses_table(
    round_: int, stage: str, clients: np.ndarray, losses: np.ndarray, n: np.ndarray
) -> pd.DataFrame:
    """Return the table of metrics for training losses.

    Args:
        round_: Number of the round.
        stage: The trained model.
        clients: The participants, [K].
        losses: Their losses, [K].
        n: Their numbers of samples, [K].
    """
    texts = {"split": "train", "stage": stage, "metric": "loss"}
    codes = np.zeros(len(clients), np.int64)
    return _typed_table(
        {
            "round": np.full(len(clients), round_),
            "client": clients,
            **{name: _text_column(codes, [text]) for name, text in texts.items()},
            "value": losses,
            "n": n,
        }
    )


def _typed_table(columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return a table of columns: arrays of numbers, and results of `_text_column`."""
    return pd.DataFrame(
        {
            name: np.asarray(columns[name], COLUMN_TYPES[name])
            if name in COLUMN_TYPES
            else columns[name]
            for name in METRIC_COLUMNS
        }
    )


def _text_column(codes: np.ndarray, texts: Sequence[str]) -> Any:
    """Return a column of texts with few different values; much faster than from a list of all.

    ``codes`` are the indices of the rows' texts.
    """
    return _text_array(tuple(texts)).take(codes)


@lru_cache(maxsize=64)
def _text_array(texts: tuple[str, ...]) -> Any:
    """Return the texts as the array type that this version of pandas uses for texts."""
    return pd.Series([*texts, ""]).array


logger = logging.getLogger(__name__)

MEMORY_BATCH_SIZE = 1024
"""Samples of a client in one call of a predictor's ``look``."""

MAX_STACK_BYTES = 2**25
"""Largest size of clients' trees that are stacked. Large models are evaluated one after another,
which is faster on a CPU than batched convolutions.
"""


@dataclass(frozen=True)
class Portion:
    """The samples of a client in a split, which are scored together."""

    client: int
    split: str
    samples: np.ndarray


ComputeMetrics = Callable[[Tree, np.ndarray], MetricValues]
"""Function (values, sizes) -> metrics; ``values`` contains the samples of portions
of those ``sizes``, one portion after another.
"""


class ViewOutputs:
    """Computes the outputs of one view of a method for samples of clients.

    Args:
        view: The view.
        personal: Whether the view gives each client its own model.
        setup: Network and samples of the run.
        state: The state after a round.
        data: The samples of each client.
        task: The task, whose ``look`` reduces outputs to values by sample.
    """

    def __init__(
        self,
        view: View,
        personal: bool,
        setup: RunSetup,
        state: State,
        data: ClientData,
        task: Task,
    ) -> None:
        network = setup.network

        def evaluate_network(variables: Tree, memory: Tree, x: Tensor) -> Tensor:
            return network.eval(variables["params"], variables["buffers"], x).outputs

        plain = Predictor(view, evaluate_network, is_per_sample=True)
        self._predictor = view if isinstance(view, Predictor) else plain
        self._state, self._arrays, self._data, self._task = state, setup.arrays, data, task
        self._absent_clients = frozenset(data.absent_clients)
        self._shared_variables = None if personal else view(state.server, None)
        look = self._predictor.look
        # Whether a sample has the same outputs for all clients.
        self.is_same_for_all = self._shared_variables is not None and look is None
        self._needs_separate_passes = (
            look is not None or not self._predictor.is_per_sample or network.uses_batch_statistics
        )
        self._can_stack = True

    def serves(self, client: int) -> bool:
        """Whether a client has a model; a client that never takes part has no own model."""
        serves_all = self._shared_variables is not None or self._predictor.serves_absent_clients
        return serves_all or client not in self._absent_clients

    @torch.no_grad()
    def model_of(self, client: int) -> tuple[Tree, Tree]:
        """Return the variables with which a client predicts, and the predictor's memory."""
        variables = self._variables(client)
        return variables, self._memory(variables, client)

    @torch.no_grad()
    def values(self, portions: Sequence[Portion]) -> Iterator[tuple[list[int], Tree]]:
        """Yield the task's values for the samples of all portions, in groups of portions.

        Args:
            portions: The portions.

        Yields:
            Indices of some portions, and the values of their samples in that order.
        """
        if self._needs_separate_passes:
            for client, indices in _group_by_client(portions).items():
                variables, memory = self.model_of(client)
                for index in indices:
                    yield [index], self._model_values(variables, portions[index].samples, memory)
        elif self._shared_variables is not None:
            samples = np.concatenate([portion.samples for portion in portions])
            values = self._model_values(self._shared_variables, samples, {})
            yield list(range(len(portions))), values
        else:
            yield from self._personal_values(portions)

    @torch.enable_grad()
    def gradient(self, client: int, samples: np.ndarray) -> Tensor:
        """Return the gradient of a client's mean loss by the weights of its model, [d]."""
        variables, memory = self.model_of(client)
        weights = trees.apply(lambda leaf: leaf.detach().requires_grad_(), variables["params"])
        total = torch.cat([leaf.detach().new_zeros(leaf.numel()) for leaf in trees.leaves(weights)])
        index = torch.from_numpy(samples).to(self._arrays.device)
        for numbers in index.split(self._task.chunk) if len(samples) else ():
            batch = self._arrays.batch(numbers, torch.ones_like(numbers))
            variables = {**variables, "params": weights}
            outputs = self._predictor.predict(variables, memory, batch["x"])
            loss = self._task.loss(outputs, batch) * (len(numbers) / len(samples))
            slopes = torch.autograd.grad(loss, trees.leaves(weights), materialize_grads=True)
            total += torch.cat([slope.reshape(-1) for slope in slopes])
        return total

    def _personal_values(self, portions: Sequence[Portion]) -> Iterator[tuple[list[int], Tree]]:
        """Yield values of stacked clients, limited by samples in a pass and memory of the stack."""
        client_bytes = trees.nbytes(self._state.server) + self._state.client_states.nbytes
        max_clients = MAX_STACK_BYTES // max(1, client_bytes)
        indices = _group_by_client(portions)
        samples = {
            client: np.concatenate([portions[index].samples for index in client_indices])
            for client, client_indices in indices.items()
        }
        # Clients of similar size together, because a stack has as many samples as its first client.
        remaining = sorted(samples, key=lambda client: (-len(samples[client]), client))
        while remaining:
            width = max(1, min(max_clients, self._task.chunk // len(samples[remaining[0]])))
            group, remaining = remaining[:width], remaining[width:]
            rows = [index for client in group for index in indices[client]]
            yield rows, self._group_values(group, [samples[client] for client in group])

    def _group_values(self, group: list[int], samples: list[np.ndarray]) -> Tree:
        """Return the values of some clients' samples, one client after another."""
        if len(group) > 1 and self._can_stack:
            try:
                return self._stacked_values(group, samples)
            except Exception as error:  # vmap lacks an operation; the loop below does not need it.
                self._can_stack = False
                reason = " ".join(str(error).split())[:200]
                logger.debug(
                    "models are evaluated one by one (%s: %s)", type(error).__name__, reason
                )
        return trees.concatenate(
            [
                self._model_values(self._variables(client), client_samples, {})
                for client, client_samples in zip(group, samples, strict=True)
            ]
        )

    def _stacked_values(self, group: list[int], samples: list[np.ndarray]) -> Tree:
        """Compute `_group_values` in one pass; clients with fewer samples repeat theirs."""
        sizes, device = np.array(list(map(len, samples))), self._arrays.device
        index = np.stack([np.resize(client_samples, sizes[0]) for client_samples in samples])
        is_real = torch.from_numpy(np.arange(sizes[0]) < sizes[:, None]).to(device)
        x = self._arrays.inputs(torch.from_numpy(index).to(device))

        def outputs(server: Tree, client: Tree, batch: Tree) -> Tree:
            variables = self._predictor(server, client)
            return {"outputs": self._predictor.predict(variables, {}, batch["x"])}

        clients = self._state.stack_clients(group, device)
        scores = trees.vmap(outputs, (None, 0, 0))(self._state.server, clients, {"x": x})
        labels = self._arrays.labels(torch.from_numpy(np.concatenate(samples)).to(device))
        return self._task.look(scores["outputs"][is_real], labels)

    def _variables(self, client: int) -> Any:
        if self._shared_variables is not None:
            return self._shared_variables
        return self._predictor(self._state.server, self._state.client(client, self._arrays.device))

    def _model_values(self, variables: Tree, samples: np.ndarray, memory: Tree) -> Tree:
        """Return the values of one model for some samples."""
        values, size = [], self._task.chunk
        for begin in range(0, len(samples), size):
            index = torch.from_numpy(samples[begin : begin + size]).to(self._arrays.device)
            outputs = self._predictor.predict(variables, memory, self._arrays.inputs(index))
            values.append(self._task.look(outputs, self._arrays.labels(index)))
        return trees.concatenate(values)

    def _memory(self, variables: Tree, client: int) -> Tree:
        """Return the predictor's memory of a client's samples."""
        look, splits = self._predictor.look, self._data.samples
        if look is None:
            return {}
        by_split: dict[str, Tree] = {}
        for split in self._predictor.memory_splits:
            if split not in splits or not len(splits[split][client]):
                continue
            index = torch.from_numpy(splits[split][client]).to(self._arrays.device)
            values = [
                look(variables, self._arrays.batch(numbers, torch.ones_like(numbers)))
                for numbers in index.split(MEMORY_BATCH_SIZE)
            ]
            by_split[split] = trees.concatenate(values)
        return self._predictor.build_memory(variables, by_split)


def _group_by_client(portions: Sequence[Portion]) -> dict[int, list[int]]:
    """Return the indices of each client's portions."""
    indices: dict[int, list[int]] = {}
    for index, portion in enumerate(portions):
        indices.setdefault(portion.client, []).append(index)
    return indices


def score_portions(
    models: ViewOutputs, portions: Sequence[Portion], compute_metrics: ComputeMetrics
) -> MetricValues:
    """Compute metrics of each portion.

    Args:
        models: The outputs of a view.
        portions: The portions.
        compute_metrics: Function from values of samples to metrics of portions.

    Returns:
        The metrics of all portions.
    """
    distinct, index_of = list(portions), np.arange(len(portions))
    if models.is_same_for_all:
        distinct, index_of = _deduplicate(portions)
    metrics: MetricValues = {}
    for rows, values in models.values(distinct):
        sizes = np.array([len(distinct[row].samples) for row in rows])
        for name, row_values in compute_metrics(values, sizes).items():
            if name not in metrics:
                metrics[name] = np.zeros((len(distinct), *row_values.shape[1:]))
            metrics[name][rows] = row_values
    return {name: row_values[index_of] for name, row_values in metrics.items()}


def _deduplicate(portions: Sequence[Portion]) -> tuple[list[Portion], np.ndarray]:
    """Return portions with different arrays of samples, and the index of each portion in them."""
    distinct: list[Portion] = []
    indices = []
    for portion in portions:
        # Clients with the same samples share one array (`ClientData.union_test_samples`).
        if not distinct or distinct[-1].samples is not portion.samples:
            distinct.append(portion)
        indices.append(len(distinct) - 1)
    return distinct, np.array(indices)
