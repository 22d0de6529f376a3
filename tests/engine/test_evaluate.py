from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from fl.api.method import Method, Predictor
from fl.api.network import Network
from fl.api.task import Task
from fl.api.tasks.classification import CLASSIFICATION
from fl.api.training import Training
from fl.base.schema import GLOBAL, METRIC_COLUMNS, PERSONAL
from fl.engine import evaluate as evaluation
from fl.engine.client_data import ClientData
from fl.engine.evaluate import evaluate
from fl.engine.run_setup import RunSetup
from fl.engine.sample_arrays import Arrays
from fl.engine.state import State
from fl.pytorch.torch_internals import is_batched

TRAINING = Training(rounds=1, lr=0.1)
IDENTITY = {"scale": 1.0, "mean": 0.0, "sd": 1.0}
NETWORK = Network(lambda: nn.Linear(3, 3, bias=False), torch.float64)

# Inputs are logits under a weight of the identity; three classes.
LOGITS = np.array(
    [
        [2.0, 0.0, 0.0],  # 0, right
        [0.0, 1.0, 0.0],  # 0, wrong
        [3.0, 0.0, 1.0],  # 0, right
        [0.0, 4.0, 0.0],  # 1, right
        [0.0, 0.0, 1.0],  # 0, wrong
        [0.0, 1.0, 0.0],  # 1, right
    ]
)
LABELS = np.array([0, 0, 0, 1, 0, 1])
HELD = ClientData(
    {
        "train": [np.array([5]), np.array([5])],
        "test": [np.array([0, 1, 2, 3]), np.array([4, 5])],
        "val": [np.zeros(0, np.int64), np.array([3])],
    }
)


def weight(*rows: list[float]) -> dict[str, Any]:
    return {"params": {"weight": torch.tensor(rows, dtype=torch.float64)}, "buffers": {}}


EYE = weight([1, 0, 0], [0, 1, 0], [0, 0, 1])


def scored(views: dict[str, Any], state: State, held: ClientData = HELD) -> pd.Series[float]:
    """Values by (client, split, stage, metric)."""
    method = Method(lambda v: ({}, {}), (), lambda s, c, u, n: (s, c), views)
    arrays = Arrays(LOGITS, LABELS, IDENTITY, dtype=torch.float64)
    rows = evaluate(RunSetup(NETWORK, TRAINING, arrays, held, 3), method, state, held, 4)
    assert list(rows.columns) == list(METRIC_COLUMNS)
    assert set(rows["round"]) == {4}
    found = rows.set_index(["client", "split", "stage", "metric"])
    assert found.index.is_unique
    for client, split, size in zip(rows["client"], rows["split"], rows["n"], strict=True):
        assert len(held.samples[split][client]) == size or held.union_test_samples is not None
    return found["value"]


def cross_entropy(sample: int, scale: float = 1.0) -> float:
    z = scale * LOGITS[sample]
    return math.log(sum(math.exp(v) for v in z)) - z[LABELS[sample]]


SHARED = {GLOBAL: lambda server, client: dict(server)}


def test_balanced_accuracy_leaves_absent_classes_out() -> None:
    """Client 0: class 0 two of three, class 1 one of one, class 2 does not occur."""
    value = scored(SHARED, State(EYE, {}))
    assert value[0, "test", "global", "balanced_accuracy"] == pytest.approx((2 / 3 + 1) / 2)
    assert value[1, "test", "global", "balanced_accuracy"] == pytest.approx((0 + 1) / 2)
    assert value[1, "val", "global", "balanced_accuracy"] == 1.0


def test_personal_weights_are_each_clients_own() -> None:
    """Client 1's weights answer the opposite; the shared ones stay what they are."""
    clients = {
        "params": {"weight": torch.stack([EYE["params"]["weight"], -EYE["params"]["weight"]])},
        "buffers": {},
    }
    views = {**SHARED, PERSONAL: lambda server, client: dict(client)}
    value = scored(views, State(EYE, clients))
    assert len(value) == 18
    assert value[0, "test", "personal", "accuracy"] == 3 / 4
    assert value[1, "test", "personal", "accuracy"] == 1 / 2
    assert value[1, "val", "personal", "accuracy"] == 0.0
    assert value[1, "val", "global", "accuracy"] == 1.0
    expected = cross_entropy(3, scale=-1.0)
    assert value[1, "val", "personal", "loss"] == pytest.approx(expected, abs=1e-12)


def test_many_samples_are_scored_as_few_are() -> None:
    """More than are run at once, and one over: the mean is over samples, not over portions."""
    draw = np.random.default_rng(0)
    logits, labels = draw.normal(size=(2049, 3)), draw.integers(0, 3, 2049)
    held = ClientData({"train": [np.arange(1)], "test": [draw.permutation(2049)]})
    arrays = Arrays(logits, labels, IDENTITY, dtype=torch.float64)
    method = Method(lambda v: ({}, {}), (), lambda s, c, u, n: (s, c), SHARED)
    rows = evaluate(RunSetup(NETWORK, TRAINING, arrays, held, 3), method, State(EYE, {}), held, 1)
    value = rows.set_index("metric")["value"]
    picked = logits[np.arange(2049), labels]
    assert value["loss"] == pytest.approx(float((np.log(np.exp(logits).sum(1)) - picked).mean()))
    right = logits.argmax(1) == labels
    assert value["accuracy"] == right.mean()
    by_class = [right[labels == c].mean() for c in range(3)]
    assert value["balanced_accuracy"] == pytest.approx(np.mean(by_class))


def test_the_order_of_a_partition_tables_rows_does_not_matter() -> None:
    """Its content hash, and so a run's identity, does not depend on it either."""
    draw = np.random.default_rng(3)
    table = pd.DataFrame(
        {
            "sample": np.arange(60),
            "client": draw.integers(0, 3, 60),
            "split": draw.choice(["train", "test"], 60),
        }
    )
    straight, turned = (
        ClientData.from_table(table),
        ClientData.from_table(table.sample(frac=1.0, random_state=1)),
    )
    for split, by_client in straight.samples.items():
        for client, samples in enumerate(by_client):
            assert samples.tolist() == turned.samples[split][client].tolist()


TABLE = pd.DataFrame(
    {
        "sample": [7, 3, 9, 1, 4, 5, 6, 2, 0],
        "client": [0, 0, 1, 1, 1, 2, 2, 2, 2],
        "split": ["train", "test", "train", "val", "test", "train", "val", "test", "test"],
    }
)


def listed(held: ClientData) -> dict[str, list[list[int]]]:
    return {split: [s.tolist() for s in by] for split, by in held.samples.items()}


def test_unseen_clients_have_a_split_of_their_own_and_no_part_in_val_and_test() -> None:
    held = ClientData.from_table(TABLE.assign(unseen=[False] * 5 + [True] * 4))
    assert listed(held) == {
        "train": [[7], [9], [5]],
        "val": [[], [1], []],
        "test": [[3], [4], []],
        "unseen": [[], [], [0, 2]],
        "unseen-val": [[], [], [6]],
    }
    assert (held.clients, held.absent_clients, held.participants.tolist()) == (3, (2,), [0, 1])
    plain = ClientData.from_table(TABLE)
    assert plain.participants.tolist() == [0, 1, 2]
    assert listed(ClientData.from_table(TABLE.assign(unseen=False))) == listed(plain)
    assert "unseen" not in plain.samples
    assert [held.samples_of("train+val", k).tolist() for k in range(3)] == [[7], [1, 9], [5, 6]]
    assert [plain.samples_of("val", k).tolist() for k in range(3)] == [[], [1], [6]]
    assert plain.samples_of("nonesuch", 0).tolist() == []


def test_global_test_is_the_union_of_what_the_seen_clients_have() -> None:
    held = ClientData.from_table(TABLE, "global")
    own = listed(ClientData.from_table(TABLE))
    assert listed(held) == {**own, "test": [[0, 2, 3, 4]] * 3}
    held = ClientData.from_table(TABLE.assign(unseen=[False] * 5 + [True] * 4), "global")
    assert listed(held)["test"] == [[3, 4], [3, 4], []]
    assert listed(held)["unseen"] == [[], [], [0, 2]]


def test_an_unseen_client_is_scored_by_the_shared_model_alone() -> None:
    none, (first, second) = np.zeros(0, np.int64), HELD.samples["test"]
    held = ClientData(
        {**HELD.samples, "test": [first, none], "unseen": [none, second]}, absent_clients=(1,)
    )
    clients = {"params": {"weight": torch.stack([EYE["params"]["weight"]] * 2)}, "buffers": {}}
    views = {**SHARED, PERSONAL: lambda server, client: dict(client)}
    value = scored(views, State(EYE, clients), held=held)
    assert value[1, "unseen", "global", "accuracy"] == 1 / 2
    own = {(0, "test", "global"), (0, "test", "personal")}
    kept = own | {(1, "unseen", "global"), (1, "val", "global")}
    assert set(value.index.droplevel("metric")) == kept


# All clients' samples by a client's shares


def test_accuracy_reweighted_by_what_a_client_trains_on() -> None:
    """Client 0 holds class 1 three times, client 1 classes 0 and 1 alike: of all test samples
    class 0 is right in two of four and class 1 in two of two.
    """
    samples = {
        "train": [np.array([3, 5, 5]), np.array([0, 3])],
        "test": [np.array([0, 1, 2, 3]), np.array([4, 5])],
    }
    held = ClientData(samples, union_test_samples=np.arange(6))
    value = scored(SHARED, State(EYE, {}), held=held)
    assert value[0, "test", "global", "reweighted_accuracy"] == 1.0
    assert value[1, "test", "global", "reweighted_accuracy"] == pytest.approx(4 / 6)
    own = scored(SHARED, State(EYE, {}), held=ClientData(samples))
    assert value[value.index.get_level_values("metric") != "reweighted_accuracy"].equals(own)


# Many models and many clients in one pass

DRAW = np.random.default_rng(8)
COUNT = 60
X, Y = DRAW.normal(size=(COUNT, 3)), DRAW.integers(0, 3, COUNT)
PARTS = [np.array(own) for own in np.split(DRAW.permutation(COUNT), [20, 23, 24, 40, 47, 49])]
VAL = [PARTS[6], np.zeros(0, np.int64), PARTS[6]]
MANY = ClientData(
    {"train": PARTS[:3], "test": PARTS[3:6], "val": VAL},
    union_test_samples=np.concatenate(PARTS[3:6]),
)
OWN_MODELS = {
    "params": {"weight": torch.from_numpy(DRAW.normal(size=(3, 3, 3)))},
    "buffers": {},
}
BOTH_VIEWS = {**SHARED, PERSONAL: lambda server, client: dict(client)}


class Noting(nn.Module):
    """A linear layer that notes how many samples each pass has; None where it is stacked."""

    def __init__(self, norm: bool = False, tell: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 3))
        self.norm = nn.BatchNorm1d(3, affine=False, track_running_stats=False) if norm else None
        self.tell, self.passes = tell, list[int | None]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes.append(None if is_batched(x) else len(x))
        if self.tell:
            self.weight.abs().sum().item()
        x = self.norm(x) if self.norm else x
        return x @ self.weight.T


def noted(views: Mapping[str, Any], task: Task = CLASSIFICATION, **options: bool) -> Any:
    """The values, and how many samples went through the network in each pass."""
    made: list[Noting] = []

    def make() -> Noting:
        made.append(Noting(**options))
        return made[-1]

    network = Network(make, torch.float64)
    method = Method(lambda v: ({}, {}), (), lambda s, c, u, n: (s, c), views)
    arrays = Arrays(X, Y, IDENTITY, dtype=torch.float64)
    setup = RunSetup(network, TRAINING, arrays, MANY, 3, task)
    rows = evaluate(setup, method, State(EYE, OWN_MODELS), MANY, 1)
    return rows, made[0].passes


def test_the_shared_model_passes_once_over_the_samples_of_all_clients() -> None:
    rows, passes = noted(SHARED)
    assert passes == [11 + 25, 25], "validation and test samples, and those of all once more"
    by_client, _ = noted(SHARED, task=replace(CLASSIFICATION, chunk=1))
    assert agree(rows, by_client)


def agree(rows: pd.DataFrame, others: pd.DataFrame) -> bool:
    names = [name for name in rows if name != "value"]
    pd.testing.assert_frame_equal(rows[names], others[names])
    exact = rows["metric"] == "accuracy"
    assert rows.loc[exact, "value"].equals(others.loc[exact, "value"])
    return bool(np.allclose(rows["value"], others["value"], rtol=0, atol=1e-14))


@pytest.mark.parametrize("room", [1, 2**25])
def test_stacked_models_score_as_one_after_another(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of unequal numbers of samples; as many as have room are stacked."""
    expected, passes = noted(BOTH_VIEWS, tell=True)
    assert passes[:3] == [36, 25, None], "it is tried once"
    assert None not in passes[3:], "what reads a number cannot be stacked"
    monkeypatch.setattr(evaluation, "MAX_STACK_BYTES", room)
    rows, passes = noted(BOTH_VIEWS)
    assert agree(rows, expected)
    assert (None in passes) == (room > 1)


def test_batches_that_normalise_themselves_are_of_one_client_and_one_split() -> None:
    """In evaluation mode too, where the network keeps no running statistics."""
    _, passes = noted(BOTH_VIEWS, norm=True)
    assert passes == [11, 16, 7, 2, 25, 11, 16, 11, 2, 7, 25, 25, 25]


def test_a_view_is_given_several_clients_samples_where_it_says_so() -> None:
    sizes: list[int] = []

    def predict(variables: Any, memory: Any, x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return x @ variables["params"]["weight"].T

    view = Predictor(BOTH_VIEWS[GLOBAL], predict)
    apart, _ = noted({GLOBAL: view})
    assert sizes == [11, 16, 7, 2, 25]
    sizes.clear()
    joined, _ = noted({GLOBAL: replace(view, is_per_sample=True)})
    assert sizes == [36, 25]
    assert agree(apart, joined)
