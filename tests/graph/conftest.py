"""The small project, run once; every test gets a copy or a clone of it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import project
import pytest
from project import Project


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The small project after a whole run. Parallel workers share one; nobody changes it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    found = Project(shared / "finished")
    with (shared / "finished.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (found.root / project.REPORT).exists():
            found = project.create(found.root)
            found.snakemake()
    return found


@pytest.fixture(params=["in place", "in a clone"])
def place(request: pytest.FixtureRequest, finished: Project, tmp_path: Path) -> Project:
    """The finished project: as it was left, and as a clone that brought results/ with it."""
    make = project.copy if request.param == "in place" else project.clone
    return make(finished, tmp_path / "project")


@pytest.fixture
def copied(finished: Project, tmp_path: Path) -> Project:
    """The finished project as it was left, where a clone could be no different."""
    return project.copy(finished, tmp_path / "project")
