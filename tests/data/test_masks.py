"""A study of masks, from generated volumes to its report; and what does not go with masks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import planning
import pytest
from sources import prostate_mri

from fl.api import task
from fl.base import registry
from fl.base.errors import ConfigError, Location
from fl.cli import main
from fl.plan import plan

STUDY: dict[str, Any] = {
    "datasets": [{"prostate-mri": {"complete": False}}],
    "partitions": [{"natural": {"val": "published", "test": "published"}}],
    "models": [{"unet": {"width": 1, "levels": 1}}],
    "training": {
        **{"rounds": 1, "local_steps": 1, "batch_size": 4, "optimizer": "adamw", "lr": 0.001},
        "arithmetic": "portable",
    },
    "methods": {
        "ditto": None,
    },
}


def config(root: Path, **study: Any) -> Path:
    files = root / "files"
    files.mkdir()
    prostate_mri.write(files)
    settings = {"sources": {"prostate-mri": str(files)}}
    return planning.write_config(root, {**STUDY, **study}, settings)


def test_volumes_become_a_report_of_dice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = config(tmp_path)
    assert main.main(["plan", "--write", "--config", str(folder)]) == 0
    bundles = sorted((tmp_path / "results" / "plan" / "bundles").glob("*.json"))
    assert main.main(["train", *map(str, bundles), "--config", str(folder)]) == 0
    assert main.main(["report", "tiny", "--config", str(folder)]) == 0
    rows = pd.read_parquet(tmp_path / "results" / "tables" / "tiny.parquet")
    scored = rows[(rows["split"] == "test") & (rows["stage"] == "global")]
    assert set(scored["metric"]) == {"loss", "dice", "foreground_dice"}
    assert set(scored["client"]) == set(range(6))
    page = (tmp_path / "results" / "report" / "tiny.html").read_text()
    assert "Final test dice (%)" in page
    assert "ajority" not in page
    assert "label entropy" not in page
    assert "accuracy" not in page
    capsys.readouterr()
    assert main.main(["show", "tiny", "--config", str(folder)]) == 0
    assert "test dice (%)" in capsys.readouterr().out


WRONG = {
    "method": (
        {"methods": {"fedproto": None}},
        r"methods\.fedproto: fedproto asks for class labels, but prostate-mri\(.*\) has masks. "
        r"Allowed: .*\bditto, .*\bfedavg, ",
    ),
    "metric": (
        {"metric": "accuracy"},
        "metric: unknown metric 'accuracy'. Allowed: dice, foreground_dice",
    ),
    "augmentation": (
        {"training": {"augmentation": "crop-mirror"}},
        r"\.augmentation: is 'crop-mirror'; 'mirror' is unknown. Allowed: none, or some of ",
    ),
    "smoothed labels": (
        {"training": {"label_smoothing": 0.1}},
        r"training\.label_smoothing: is 0\.1, but prostate-mri\(.*\) has masks. Allowed: 0\.0, or ",
    ),
    "two tasks": (
        {"datasets": ["digits", {"prostate-mri": {"complete": False}}]},
        r"datasets\.1\.prostate-mri: .* is for segmentation, but the study for classification. "
        "Try: data sets of one task",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_asks_for_class_labels_is_told_that_there_are_masks(name: str, tmp_path: Path) -> None:
    study, message = WRONG[name]
    with pytest.raises(ConfigError, match=message):
        plan.make(config(tmp_path, **study))


@pytest.mark.parametrize("tasks", ["any", ["any"], ("segmentation",)])
def test_tasks_of_a_component_are_a_text_or_a_sequence(tasks: Sequence[str]) -> None:
    component = SimpleNamespace(tasks=tasks)
    assert task.serves(component, "segmentation")
    assert task.serves(component, "classification") == ("any" in tasks)


def test_an_unknown_task_of_a_component_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = registry.find("method", "fedproto", Location("x")).target
    monkeypatch.setattr(method, "tasks", "masks", raising=False)
    with pytest.raises(ConfigError, match=r"fedproto\.py: unknown task 'masks'.*Allowed"):
        plan.make(config(tmp_path, methods={"fedproto": None}))
