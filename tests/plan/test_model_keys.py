"""The keys that every model has, from a study to a trained run."""

from __future__ import annotations

import json
from pathlib import Path

import planning
import pytest

from fl.base.errors import ConfigError
from fl.plan import plan

SHORT = {"rounds": 1, "batch_size": 8, "lr": 0.05}


def test_a_run_trains_and_sends_what_its_model_leaves_free(tmp_path: Path) -> None:
    keys = {"hidden": [5], "trainable": ["3.*"]}
    planned = planning.make(tmp_path, models=[{"mlp": keys}], training=SHORT)
    [run] = planned.bundle("fedavg")["runs"]
    assert run["spec"]["model"]["trainable"] == ["3.*"]
    assert planned.train("fedavg") == 0
    record = json.loads((tmp_path / "runs" / run["run"] / "run.json").read_text())
    outputs, hidden = 10, 5
    assert record["costs"]["bytes_up"] == 4 * outputs * (hidden + 1)


def test_a_pattern_without_a_weight_is_refused_when_a_study_is_planned(tmp_path: Path) -> None:
    config = planning.write_config(tmp_path, {"models": [{"mlp": {"trainable": ["nothing"]}}]})
    with pytest.raises(ConfigError) as error:
        plan.make(config)
    start = "models.0.mlp: trainable: 'nothing' matches no weight of the model. Allowed: 1.weight,"
    assert start in str(error.value)
