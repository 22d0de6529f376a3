"""Regression: its metrics, FedAvg by hand, and what holds for the methods that serve it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import worlds
from golden import adapter
from golden import worlds as golden
from short import short
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from fl.api.tasks.regression import REGRESSION
from fl.base.schema import UNSEEN
from fl.engine.predictions import predict_split
from fl.engine.simulate import validation_scores
from fl.engine.simulation import Simulation

METHODS = (
    "fedavg",
    "ditto",
    "fedprox",
    "scaffold",
    "pfedme",
    "fedrep",
    "fedala",
    "feddbe",
    "q-ffl",
)
LINEAR = {"name": "logistic"}


def world(method: str, model: dict[str, Any] = golden.MLP, **training: Any) -> Simulation:
    spec = {
        **{"data": "targets", "task": "regression", "model": model},
        "method": {"name": method, **short(method)},
        "training": {**worlds.TRAINING, **training},
        "away": True,
    }
    table = golden.table(spec)
    return adapter.simulated(spec, golden.arrays("targets", table), table)


@pytest.mark.parametrize("method", METHODS)
def test_stacked_is_loop_and_errors_are_reported(method: str) -> None:
    simulation = world(method)
    loop, rows = worlds.run(simulation, "loop")
    stacked, stacked_rows = worlds.run(simulation, "stacked")
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
    assert worlds.rows_agree(stacked_rows, rows, 1e-9)
    assert worlds.distance(worlds.tree(loop), worlds.tree(simulation.begin())) > 1e-3
    assert set(rows.loc[rows["split"] != "train", "metric"]) == {"loss", "rmse", "mae", "r2"}


def test_fedavg_of_a_linear_model_is_that_of_numpy() -> None:
    """Full batches of all clients: targets and inputs are standardised over training rows alone."""
    training = {"local_epochs": 1, "local_steps": None, "momentum": 0.0, "weight_decay": 0.0}
    simulation = world("fedavg", LINEAR, batch_size=64, participation=1.0, schedule="constant",
                       lr_decay=1.0, rounds=3, **training)  # fmt: skip
    # The rows that train, and their scales.
    spec = {"method": {"name": "fedavg"}, "away": True}
    table = golden.table(spec)
    given = golden.arrays("targets", table)
    trains = (table["split"] == "train") & ~table["unseen"]
    rows = {k: group["sample"].to_numpy() for k, group in table[trains].groupby("client")}
    every = np.concatenate([*rows.values()])
    scales = [(a[every].mean(0), a[every].std(0)) for a in (given["x"], given["target"])]
    x, y = ((a - m) / s for a, (m, s) in zip((given["x"], given["target"]), scales, strict=True))
    # FedAvg in NumPy, three rounds of one step.
    start = simulation.begin().server["params"]
    w, b = (start[name].numpy().ravel().copy() for name in start)
    for _ in range(3):
        steps = []
        for samples in rows.values():
            gap = x[samples] @ w + b - y[samples]
            steps.append((w - 0.2 * gap @ x[samples] / len(samples), b - 0.2 * gap.mean()))
        sizes = np.array([len(samples) for samples in rows.values()]) / len(every)
        w, b = (sum(n * step[i] for n, step in zip(sizes, steps, strict=True)) for i in (0, 1))
    # The weights of Fedloom are these.
    state, metrics = worlds.run(simulation, "stacked")
    params = state.server["params"]
    for name, expected in zip(params, (w, b), strict=True):
        assert params[name].numpy().ravel() == pytest.approx(expected, abs=1e-12)

    # Its metrics are of targets in their own units.
    tests = table[(table["split"] == "test") & (table["client"] == 2)]["sample"].to_numpy()
    mean, sd = scales[1]
    predicted = mean + sd * (x[tests] @ w + b)
    last = metrics[
        (metrics["round"] == 3) & (metrics["split"] == "test") & (metrics["client"] == 2)
    ]
    values = last.set_index("metric")["value"]
    truth = given["target"][tests]
    assert values["mae"] == pytest.approx(mean_absolute_error(truth, predicted), rel=1e-12)
    assert values["rmse"] == pytest.approx(root_mean_squared_error(truth, predicted), rel=1e-12)
    assert values["r2"] == pytest.approx(r2_score(truth, predicted), rel=1e-12)
    assert values["loss"] == pytest.approx((values["rmse"] / sd) ** 2, rel=1e-12)
    # So are predictions.
    shown = predict_split(simulation, simulation.final_weights(state)["global"], "global", "test")
    shown = shown[shown["client"] == 2]
    assert shown["target"].to_numpy() == pytest.approx(truth, rel=1e-12)
    assert shown["predicted"].to_numpy() == pytest.approx(predicted, rel=1e-12)
    # Held-out clients are scored, and a smaller error is the better score.
    assert UNSEEN in set(metrics["split"])
    scores = validation_scores(simulation, metrics)
    assert scores[3] > scores[1], "an error that falls is a score that rises"


def test_metrics_are_those_of_scikit_learn_and_r2_needs_targets_that_differ() -> None:
    draw = np.random.default_rng(0)
    sizes = np.array([7, 1, 5, 3])
    target, outputs = draw.normal(3, 2, 16), draw.normal(3, 2, (16, 1))
    target[13:] = 1.1
    values = REGRESSION.look(torch.from_numpy(outputs), torch.from_numpy(target))
    scores = REGRESSION.conclude(values, sizes, 1)
    for client, first in ((0, 0), (2, 8)):
        rows = slice(first, first + sizes[client])
        pair = target[rows], outputs[rows, 0]
        assert scores["r2"][client] == pytest.approx(r2_score(*pair), rel=1e-12)
        assert scores["mae"][client] == pytest.approx(mean_absolute_error(*pair), rel=1e-12)
        assert scores["rmse"][client] == pytest.approx(root_mean_squared_error(*pair), rel=1e-12)
    assert np.isnan(scores["r2"]).tolist() == [False, True, False, True]
    assert np.isfinite([scores[name] for name in ("loss", "mae", "rmse")]).all()


def test_the_loss_is_the_weighted_mean_square() -> None:
    outputs, y = torch.tensor([[1.0], [3.0], [7.0]]), torch.tensor([0.0, 1.0, 0.0])
    batch = {"y": y, "weight": torch.tensor([1.0, 0.5, 0.0])}
    assert float(REGRESSION.loss(outputs, batch)) == pytest.approx((1 + 0.5 * 4) / 1.5)
