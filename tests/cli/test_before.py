"""A run that Fedloom stored before code had versions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import planning
import pytest

from fl.cli import main
from fl.store.store import Store

BEFORE = Path(__file__).parent / "before"


def test_it_is_listed_verified_explained_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(planning.write_config(tmp_path))
    run = json.loads((BEFORE / "run.json").read_text())["run"]
    shutil.copytree(BEFORE, tmp_path / "runs" / run)

    def said(*arguments: str) -> str:
        assert main.main([*arguments, "--config", config]) == 0
        return capsys.readouterr().out

    assert run in said("store", "ls")
    said("store", "verify")
    assert "execution.backend" not in said("explain", run)
    said("show", "tiny")
    said("store", "export", str(tmp_path / "away"))
    assert Store(tmp_path / "away").runs() == [run]
