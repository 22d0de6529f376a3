"""A published set through the whole graph, from an HTTP server to its report."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import fixtures_demo
import pandas as pd
import preloaded
import pytest
import yaml


@pytest.mark.graph
def test_generated_files_become_a_report_and_a_lock_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "demo"
    monkeypatch.setattr(sys, "argv", ["fixtures_demo.py", "femnist", "--into", str(folder)])
    monkeypatch.setattr(sys, "executable", preloaded.python())
    assert fixtures_demo.main() == 0
    assert f"{folder}/results/report/femnist.html" in capfd.readouterr().out
    config = yaml.safe_load((folder / "config" / "config.yaml").read_text())
    assert config["sources"]["femnist"].startswith("http://127.0.0.1:")
    lock = json.loads((folder / "config" / "sources.lock.json").read_text())
    assert sorted(lock["femnist-subset"]) == ["by_class.zip", "by_write.zip"]
    raw = folder / "data" / "raw" / "femnist-subset"
    assert sorted(p.name for p in raw.iterdir()) == ["by_class.zip", "by_write.zip", "sources.json"]
    table = pd.read_parquet(folder / "results" / "tables" / "femnist.parquet")
    assert set(table["method"]) == {"local", "fedavg"}
    assert set(table["client"]) == {0, 1, 2}
