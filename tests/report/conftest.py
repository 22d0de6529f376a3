from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from make_results import write_six, write_study

from fl import report


@pytest.fixture(autouse=True, scope="module")
def _any_name(any_name: None) -> None:
    pass


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``built("six")``: the folder of results whose report is built; tests only read it."""

    @cache
    def build(study: str) -> Path:
        results = tmp_path_factory.mktemp(study) / "results"
        {"quickstart": write_study, "six": write_six}[study](results)
        report.build(study, results, results / "runs")
        return results

    return build
