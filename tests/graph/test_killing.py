"""kill -9 in the middle of a run, and two Snakemakes at once: the tables end up the same."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import project
import pytest
from project import TABLE, Project

from fl.graph import marker

pytestmark = pytest.mark.graph

LONG = {
    "methods": {"fedavg": None},
    "seeds": [0],
    "training": {"rounds": 60, "batch_size": 16, "lr": 0.05, "momentum": 0.9},
}


@pytest.fixture(scope="module")
def undisturbed(finished: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One run that takes seconds, with a checkpoint after every round; it has ended."""
    found = project.copy(finished, tmp_path_factory.mktemp("killing") / "undisturbed")
    found.study(**LONG)
    found.settings(execution={**project.SETTINGS["execution"], "checkpoint_every": 1})
    assert found.trained() == ["fedavg 0"]
    return found


@pytest.fixture
def begun(undisturbed: Project, tmp_path: Path) -> Iterator[tuple[Project, subprocess.Popen[str]]]:
    """The same project without that run, and the Snakemake that has done some of its rounds."""
    found = project.copy(undisturbed, tmp_path / "project")
    forget(found, "fedavg 0")
    process = found.start(TABLE)
    try:
        wait_for_round(found, 5)
        yield found, process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def forget(place: Project, *names: str) -> None:
    """Remove runs, with all that was made of them."""
    results = place.root / "results"
    for name in names:
        shutil.rmtree(results / "runs" / place.run(name))
        marker(results, place.bundle(name)).unlink(missing_ok=True)
    (place.root / TABLE).unlink(missing_ok=True)


def wait_for_round(place: Project, least: int) -> None:
    """Until the checkpoint of that round, or of a later one, is there."""
    folder = place.root / "results" / "runs" / f"{place.run('fedavg 0')}.partial" / "checkpoint"
    end = time.monotonic() + 60
    while not any(int(path.name.partition("-")[2]) >= least for path in folder.glob("round-*")):
        assert time.monotonic() < end, "no checkpoint came"
        time.sleep(0.01)


def kill_job(place: Project) -> None:
    """kill -9 of the process that holds the run."""
    lease = place.root / "results" / "runs" / f"{place.run('fedavg 0')}.partial" / "lease.json"
    os.kill(json.loads(lease.read_text())["pid"], signal.SIGKILL)


def resumed(place: Project) -> int:
    """The round after which the last job went on."""
    [line] = [x for x in place.log("fedavg 0").read_text().splitlines() if "resumed" in x]
    return int(line.rpartition(" ")[2])


def test_a_killed_job_goes_on_where_it_was(begun, undisturbed: Project):
    place, process = begun
    kill_job(place)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert str(place.log("fedavg 0").relative_to(place.root)) in output
    assert place.trained() == ["fedavg 0"]
    assert 5 <= resumed(place) < 60
    assert place.table() == undisturbed.table()


def test_a_job_outlives_its_snakemake_and_is_not_done_twice(begun, undisturbed: Project):
    place, process = begun
    process.kill()
    process.wait()
    assert place.trained() == ["fedavg 0"]
    assert "already there" in place.log("fedavg 0").read_text()
    assert place.table() == undisturbed.table()


def test_after_a_kill_of_both_it_goes_on_in_place_and_in_a_clone(
    begun, undisturbed: Project, tmp_path: Path
):
    place, process = begun
    process.kill()
    kill_job(place)
    process.wait()
    for found in (project.clone(place, tmp_path / "clone"), place):
        assert found.trained() == ["fedavg 0"]
        assert 5 <= resumed(found) < 60
        assert found.table() == undisturbed.table()


def test_two_snakemakes_at_once_do_everything_once(place: Project):
    table, before = place.table(), place.records()
    forget(place, "fedavg 0", "fedprox 0")
    processes = [place.start(), place.start()]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    assert place.since(before) == ["fedavg 0", "fedprox 0"]
    assert place.table() == table
    assert "Nothing to be done" in place.snakemake()
