"""Shipped studies: those that are a paper's say what is known to differ from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

STUDIES = sorted((Path(__file__).parents[2] / "config" / "studies").rglob("*.yaml"))
EVERYBODYS = {"digits", "digits-domains"}
"""Data that come with scikit-learn, of which no paper's table is."""


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_papers_study_lists_its_departures(path: Path) -> None:
    study = yaml.safe_load(path.read_text())
    names = {name if isinstance(name, str) else next(iter(name)) for name in study["datasets"]}
    of_no_paper = "paper" not in study or names <= EVERYBODYS
    assert study.get("departures") is not None or of_no_paper
