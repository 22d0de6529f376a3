"""What tests of data share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from own_data import READER, rows, write

from fl.base import hashes, plugins


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a plugin's data set over ``own.csv`` and the study ``tiny`` on it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hashes, "SETTLING_SECONDS", 0.0)
    monkeypatch.setattr(plugins, "_roots", dict(plugins.roots()))
    monkeypatch.setattr(sys, "path", list(sys.path))
    lab = tmp_path / f"lab_{tmp_path.name}"
    (lab / "datasets").mkdir(parents=True)
    (lab / "datasets" / "measured.py").write_text(READER)
    (tmp_path / "own.csv").write_text(rows(1))
    write(tmp_path, ["measured"], plugins=[lab.name])
    return tmp_path
