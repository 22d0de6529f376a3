"""A published set through the whole graph, from an HTTP server to its report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.graph
def test_generated_files_become_a_report_and_a_lock_entry(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    command = [sys.executable, "tests/fixtures_demo.py", "femnist", "--into", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{folder}/results/report/femnist.html" in done.stdout
    config = yaml.safe_load((folder / "config" / "config.yaml").read_text())
    assert config["sources"]["femnist"].startswith("http://127.0.0.1:")
    lock = json.loads((folder / "config" / "sources.lock.json").read_text())
    assert sorted(lock["femnist-subset"]) == ["by_class.zip", "by_write.zip"]
    raw = folder / "data" / "raw" / "femnist-subset"
    assert sorted(p.name for p in raw.iterdir()) == ["by_class.zip", "by_write.zip", "sources.json"]
    table = pd.read_parquet(folder / "results" / "tables" / "femnist.parquet")
    assert set(table["method"]) == {"local", "fedavg"}
    assert set(table["client"]) == {0, 1, 2}
