"""A study of targets, from a table to its report; and what does not go with targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import planning
import pytest
from sklearn.datasets import load_diabetes
from torch import nn

import fl
from fl.base import plugins
from fl.base.errors import ConfigError, FedloomError
from fl.cli import main
from fl.plan import plan

CALL: dict[str, Any] = {"methods": ["fedavg"], "model": "logistic", "rounds": 1, "progress": False}


def config(root: Path, table: dict[str, Any] | None = None, **study: Any) -> Path:
    frame = load_diabetes(as_frame=True, scaled=False).frame.iloc[:120]
    frame["clinic"] = frame.index % 3
    path = root / "diabetes.csv"
    frame.to_csv(path, index=False)
    keys = {"target": "target", "client": "clinic"} if table is None else table
    return planning.write_config(
        root,
        {
            "datasets": [{"table": {"path": str(path), **keys}}],
            "partitions": ["natural"],
            "models": [{"mlp": {"hidden": [4]}}],
            "training": {"rounds": 3, "batch_size": 8, "lr": 0.02, "early_stopping": 2},
            "scored": "best",
            "methods": {"fedavg": None, "ditto": {"lam": [0.1, 1.0]}},
            **study,
        },
    )


def test_a_table_becomes_a_report_of_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = config(tmp_path)
    assert main.main(["plan", "--write", "--config", str(folder)]) == 0
    bundles = sorted((tmp_path / "results" / "plan" / "bundles").glob("*.json"))
    assert main.main(["train", *map(str, bundles), "--config", str(folder)]) == 0
    assert main.main(["report", "tiny", "--config", str(folder)]) == 0
    rows = pd.read_parquet(tmp_path / "results" / "tables" / "tiny.parquet")
    scored = rows[(rows["split"] == "test") & (rows["stage"] == "global")]
    assert set(scored["metric"]) == {"loss", "mae", "r2", "rmse"}
    errors = rows.loc[rows["metric"] == "rmse", "value"]
    assert errors.between(20, 120).all(), "in the target's unit"
    page = (tmp_path / "results" / "report" / "tiny.html").read_text()
    assert "Final test RMSE (unit of the target)" in page
    assert "An error reaches 95 % of a value v at v / 0.95" in page
    for word in ("ajority", "label entropy", "accuracy", "RMSE (%)"):
        assert word not in page
    capsys.readouterr()
    assert main.main(["show", "tiny", "--config", str(folder)]) == 0
    assert "test RMSE (unit of the target)" in capsys.readouterr().out


WRONG = {
    "partition": (
        {"partitions": [{"dirichlet": {"clients": 3, "alpha": 1.0}}]},
        r"dirichlet asks for class labels, but table\(.*\) has targets. Allowed: domain, file, "
        r"homogeneous, natural, power-law",
    ),
    "method": (
        {"methods": {"fedlc": None}},
        r"fedlc asks for class labels, but .* has targets. Allowed: .*\bfedavg, .*\bfedrep, ",
    ),
    "model": ({"models": ["unet"]}, r"unet asks for masks, but .* has targets. Allowed: .*\bmlp, "),
    "metric": ({"metric": "accuracy"}, "unknown metric 'accuracy'. Allowed: mae, r2, rmse"),
    "class weights": ({"metrics": ["auroc"]}, r"metrics: is .*auroc.* has targets"),
    "neither": ({"table": {"client": "clinic"}}, "has neither label nor target. Try: name the"),
    "both": ({"table": {"label": "sex", "target": "bp"}}, "label and target are set"),
    "no numbers": ({"table": {"target": "sort"}}, "target is 'sort', but there is no such column"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_asks_for_class_labels_is_told_that_there_are_targets(
    name: str, tmp_path: Path
) -> None:
    study, message = WRONG[name]
    with pytest.raises(ConfigError, match=message):
        plan.make(config(tmp_path, **study))


WRONG_TARGETS = {
    "y": ("same", "column 'y', row 2: an empty cell is no number"),
    "same": ("y", "target 'same' has one value only, 2"),
}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_true_and_false_are_no_target(suffix: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1.0, 2, 3], "ill": [True, False, True]})
    path = tmp_path / f"t{suffix}"
    frame.to_parquet(path) if suffix == ".parquet" else frame.to_csv(path, index=False)
    with pytest.raises(ConfigError, match=rf"t\{suffix}: column 'ill'.* under `label`"):
        plan.make(config(tmp_path, datasets=[{"table": {"path": str(path), "target": "ill"}}]))


def test_a_target_that_is_constant_in_training_is_refused() -> None:
    draw = np.random.default_rng(0)
    x, target = draw.normal(size=(40, 3)), np.where(np.arange(40) < 20, 7.5, draw.normal(size=40))
    split = np.where(np.arange(40) < 20, "train", "test")
    made = fl.arrays(x, target=target, split=split)
    partition = {"homogeneous": {"clients": 2, "test": "published"}}
    with pytest.raises(FedloomError, match=r"each of the 18 training samples is 7\.5"):
        fl.run(dataset=made, partition=partition, **CALL)


@pytest.mark.parametrize("target", WRONG_TARGETS)
def test_targets_of_a_table_are_numbers_that_differ(target: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1.0, 2, 3], "y": ["1.5", "", "2"], "same": [2, 2, 2]})
    path, (other, message) = tmp_path / "t.csv", WRONG_TARGETS[target]
    frame.to_csv(path, index=False)
    table = {"path": str(path), "target": target, "drop": [other]}
    with pytest.raises(ConfigError, match=message):
        plan.make(config(tmp_path, datasets=[{"table": table}]))


def test_a_model_has_one_output_for_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "_roots", dict(plugins.roots()))
    data = fl.arrays(np.random.default_rng(0).normal(size=(60, 3)), target=np.arange(60) / 7)
    wrong: dict[str, Any] = {
        "has 2 outputs, but .* has one target. Allowed: 1 output": lambda shape, classes: nn.Linear(
            3, 2
        ),
        r"samples are \[2\]\. .* Try: keep the last axis": lambda shape, classes: nn.Sequential(
            nn.Linear(3, 1), nn.Flatten(0)
        ),
    }
    for said, model in wrong.items():
        with pytest.raises(FedloomError, match=said):
            fl.run(
                dataset=data, partition={"homogeneous": {"clients": 4}}, **CALL | {"model": model}
            )


def test_a_call_takes_targets_and_sizes_may_be_skewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(60, 3))
    skewed = {"power-law": {"clients": 4, "classes_per_client": 1, "min_samples": 6}}
    floats = fl.run(dataset=fl.arrays(x, x @ [1, 2, 3]), partition=skewed, metric="r2", **CALL)
    assert floats.table()["mean"].between(-5, 1).all()
    shown = floats.predictions("fedavg").set_index("sample")["target"]
    assert shown.to_numpy() == pytest.approx((x @ [1, 2, 3])[shown.index], abs=1e-5)
    with pytest.raises(FedloomError, match="has targets, and confusion is of classes"):
        floats.confusion("fedavg")
    whole = fl.arrays(x, target=np.arange(60) % 7)
    counts = fl.run(dataset=whole, partition={"homogeneous": {"clients": 4}}, **CALL)
    assert counts.study.metric == "rmse"
    frame = pd.DataFrame(x, columns=[*"abc"]).assign(cost=x @ [1, 2, 3])
    table = {"frame": frame, "target": "cost", "standardise": False}
    plain = fl.run(dataset={"table": table}, partition={"homogeneous": {"clients": 4}}, **CALL)
    rows = plain.curves()
    loss, rmse = (rows.loc[rows["metric"] == name, "value"].to_numpy() for name in ("loss", "rmse"))
    assert rmse == pytest.approx(np.sqrt(loss)), "targets stay as they are"
