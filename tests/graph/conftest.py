"""The small project, run once; every test gets a copy or a clone of it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import project
import pytest
from project import Project

Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """``once(name, make)``: the path of which ``make`` made something, in one worker for all of
    them. Nobody changes what is there.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def found(name: str, make: Callable[[Path], object]) -> Path:
        path, made = shared / name, shared / f"{name}.made"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                shutil.rmtree(path, ignore_errors=True)
                make(path)
                made.touch()
        return path

    return found


@pytest.fixture(scope="session")
def finished(once: Once) -> Project:
    """The small project after a whole run."""
    return Project(once("finished", lambda root: project.create(root).snakemake()))


@pytest.fixture
def cloned(finished: Project, tmp_path: Path) -> Project:
    """The finished project in a clone, where times of files say nothing.

    What holds here holds in place, too, where `copied` projects show that an edit is seen.
    """
    return project.clone(finished, tmp_path / "project")


@pytest.fixture
def copied(finished: Project, tmp_path: Path) -> Project:
    """The finished project as it was left, where a clone could be no different."""
    return project.copy(finished, tmp_path / "project")
