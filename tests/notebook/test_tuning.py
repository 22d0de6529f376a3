"""The points of a track, chosen on draws of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import planning
import pytest
import yaml

import fl
from fl.report.tuning import best
from tools import tuning

STUDY: dict[str, Any] = {
    "datasets": [{"synthetic": {"clients": 3, "samples": 60, "alpha": 1.0}}],
    "partitions": [{"dirichlet": {"clients": 3, "alpha": 0.5, "min_samples": 8, "seed": [5, 6]}}],
    "models": [{"mlp": {"hidden": [4]}}],
    "seeds": "per-draw",
    "training": {"rounds": 2, "local_steps": 2, "batch_size": 8},
    "methods": {
        "fedavg": {"lr": [1e-6, 0.5, 1e30]},
        "fedavg-ft": {"method": "finetune", "start": "fedavg", "rounds": 1, "lr": [0.1, 0.2]},
    },
}


def test_a_point_is_chosen_over_all_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    planning.write_config(tmp_path)
    study = yaml.safe_dump(STUDY, sort_keys=False)
    (tmp_path / "config/studies/tuning-tiny.yaml").write_text(study)
    with pytest.warns(UserWarning, match="diverged"):
        fl.run(name="same", progress=False, **STUDY)
    assert tuning.main(["tiny"]) == 0
    printed = capsys.readouterr().out
    assert "  fedavg: {lr: 0.5} # 0." in printed  # 1e30 diverged, so that this is the highest
    assert "the highest rate" in printed.splitlines()[0]
    assert printed.count("fedavg-ft: {lr: 0.") == 1
    table = tuning.points(Path("config"), "tuning-tiny")
    assert set(table.loc[table["method"] == "fedavg", "hp.lr"]) == {1e-6, 0.5}


def test_what_starts_from_another_has_its_best_point() -> None:
    rows = [
        ("fedavg", 0.1, None, 0.5),
        ("fedavg", 0.2, None, 0.6),
        ("ft", 0.3, 0.1, 0.9),
        ("ft", 0.3, 0.2, 0.7),
        ("ft", 0.4, 0.2, 0.8),
    ]
    table = pd.DataFrame(rows, columns=["method", "hp.lr", "hp.start.lr", "val"])
    chosen = best(table, {"ft": "fedavg"})
    assert chosen["fedavg"]["hp.lr"] == 0.2
    assert chosen["ft"][["hp.lr", "hp.start.lr"]].tolist() == [0.4, 0.2]
