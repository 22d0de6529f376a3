"""The small project, run once; every test gets a copy or a clone of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import project
import pytest
from project import Project


@pytest.fixture(scope="session")
def finished(once: Callable[..., Path]) -> Project:
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
