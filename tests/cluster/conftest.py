"""A Slurm of our own for every worker that needs one, and projects that are run through it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import daemons
import project
import pytest
from clustered import Clustered
from daemons import Slurm

LAB = Path(__file__).with_name("lab")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Slurm]:
    if gone := daemons.missing():
        pytest.skip(f"Slurm is not installed: {', '.join(gone)} (Debian: slurm-wlm, munge)")
    # Not below pytest's folder: the path of a socket may not be longer than 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="fedloom-slurm-"))
    try:
        with daemons.start(folder) as found:
            yield found
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def clustered(cluster: Slurm, tmp_path: Path) -> Iterator[Clustered]:
    """The small project, with the methods of the lab; what it started is ended with the test."""
    root = project.create(tmp_path / "project").root
    shutil.copytree(LAB, root / "lab", ignore=shutil.ignore_patterns("__pycache__"))
    found = Clustered(root, cluster)
    yield found
    for process in found.started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
    for job in cluster.jobs(root):
        if job.state in ("PENDING", "RUNNING", "COMPLETING"):
            cluster.ask("scancel", job.id)
