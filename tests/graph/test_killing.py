"""kill -9 in the middle of a run, and two Snakemakes at once: the tables end up the same."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import project
import pytest
from project import REPORT, TABLE, Project, Real, until

pytestmark = pytest.mark.graph

LAB = Path(__file__).parent / "lab"

RUN = "held 0"
HELD = {
    "methods": {"held": None},
    "seeds": [0],
    "training": {"rounds": 8, "batch_size": 16, "lr": 0.05, "momentum": 0.9},
}


@pytest.fixture(scope="module")
def undisturbed(finished: Project, once: Callable[..., Path]) -> Project:
    """One run with a checkpoint after every round; it has ended."""

    def make(root: Path) -> None:
        found = project.copy(finished, root)
        shutil.copytree(LAB, root / LAB.name, ignore=shutil.ignore_patterns("__pycache__"))
        found.study(**HELD)
        often = {**project.SETTINGS["execution"], "checkpoint_every": 1}
        found.settings(plugins=[LAB.name], execution=often)
        assert found.trained() == [RUN]

    return Project(once("killing", make))


@pytest.fixture
def begun(undisturbed: Project, tmp_path: Path) -> Iterator[tuple[Project, subprocess.Popen[str]]]:
    """The same project without that run, and the Snakemake whose job is held after 5 of its rounds
    for as long as there is the file ``hold``.
    """
    with started(project.copy(undisturbed, tmp_path / "project")) as found:
        yield found


@contextlib.contextmanager
def started(place: Project) -> Iterator[tuple[Project, subprocess.Popen[str]]]:
    """As ``begun``, for the length of a block."""
    forget(place, RUN)
    hold(place).touch()
    process = place.start(TABLE)
    try:
        until((place.root / "holding").exists)  # A checkpoint is there before its job waits.
        yield place, process
    finally:
        hold(place).unlink(missing_ok=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def forget(place: Project, *names: str) -> None:
    """Remove runs, with all that was made of them."""
    for name in names:
        shutil.rmtree(place.root / "results" / "runs" / place.run(name))
    (place.root / TABLE).unlink(missing_ok=True)


def hold(place: Project) -> Path:
    """The file for which the method ``held`` waits."""
    return place.root / "hold"


def partial(place: Project) -> Path:
    """Where the run is computed."""
    return place.root / "results" / "runs" / f"{place.run(RUN)}.partial"


def kill_job(place: Project) -> None:
    """kill -9 of the process that holds the run."""
    lease = json.loads((partial(place) / "lease.json").read_text())
    os.kill(lease["pid"], signal.SIGKILL)
    hold(place).unlink()


def said(place: Project) -> str:
    """What the log of the job has, which is removed for a moment when another one begins."""
    try:
        return place.log(RUN).read_text()
    except FileNotFoundError:
        return ""


def resumed(place: Project) -> int:
    """The round after which the last job went on."""
    [line] = [x for x in said(place).splitlines() if "resumed" in x]
    return int(line.rpartition(" ")[2])


def test_a_job_outlives_its_snakemake_and_is_not_done_twice(begun, undisturbed: Project):
    place, process = begun
    process.kill()
    process.wait()
    second = place.start(TABLE)
    until(lambda: "waiting for" in said(place))
    hold(place).unlink()
    output, _ = second.communicate(timeout=180)
    assert second.returncode == 0, output
    assert "already there" in said(place)
    assert place.table() == undisturbed.table()


def test_ctrl_c_ends_in_one_sentence(undisturbed: Project, tmp_path: Path):
    """Of processes in one group, as a terminal has them."""
    with started(Real(project.copy(undisturbed, tmp_path / "project").root)) as (place, process):
        os.killpg(process.pid, signal.SIGINT)  # As a terminal does.
        until(lambda: "Ctrl-C again stops at once" in said(place))
        hold(place).unlink()
        output, _ = process.communicate(timeout=180)
    assert process.returncode == 1
    before, _, after = output.partition("\nStopping: ")
    assert len(after.splitlines()) == 1, after
    assert after.endswith("are kept; the same command continues.\n")
    assert not [word for word in ("Error", "Traceback") if word in before]
    assert said(place).splitlines()[-1].startswith(f"stopped: {place.run(RUN)}: left after round")
    assert Project(place.root).trained() == [RUN]
    assert resumed(place) == 6
    assert place.table() == undisturbed.table()


def test_a_run_that_is_killed_is_named_at_the_end_and_goes_on_in_a_clone(
    begun, undisturbed: Project, tmp_path: Path
):
    place, process = begun
    kill_job(place)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 1
    *_, before, killed, report, after = output.splitlines()
    assert before == "Some jobs failed." and REPORT in report
    assert after.startswith("Finished runs and checkpoints are kept")
    assert killed.startswith(f"  {place.run(RUN)}  ") and ": round 5 of 8, it was killed" in killed
    found = project.clone(place, tmp_path / "clone")
    assert found.trained() == [RUN]
    assert resumed(found) == 5
    assert found.table() == undisturbed.table()


def test_two_snakemakes_at_once_do_everything_once(copied: Project):
    table, before = copied.table(), copied.records()
    forget(copied, "fedavg 0", "fedprox 0")
    processes = [copied.start(), copied.start()]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    assert copied.since(before) == ["fedavg 0", "fedprox 0"]
    assert copied.table() == table
    assert "Nothing to be done" in copied.snakemake()
