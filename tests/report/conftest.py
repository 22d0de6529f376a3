from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from make_results import write_six, write_study

from fl import report


@pytest.fixture(autouse=True, scope="module")
def _any_name(any_name: None) -> None:
    pass


@pytest.fixture(scope="session")
def built(once: Callable[..., Path]) -> Callable[[str], Path]:
    """``built("six")``: the folder of results whose report is built; tests only read it."""

    def build(study: str, root: Path) -> None:
        results = root / "results"
        {"quickstart": write_study, "six": write_six}[study](results)
        report.build(study, results, results / "runs")

    return lambda study: once(f"report-{study}", partial(build, study)) / "results"
