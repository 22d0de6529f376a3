"""Whatever happens to a pipeline, it goes on when it is started again, to the same bytes."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mounting
import preloaded
import project
import psutil
import pytest
from project import REPORT, SETTINGS, STUDY, TABLE, Project, fl, until

from fl.store.store import Store

pytestmark = pytest.mark.graph

KILLS = 12
LONG = {"training": {**STUDY["training"], "rounds": 12, "momentum": 0.9}}
OFTEN = {"execution": {**SETTINGS["execution"], "checkpoint_every": 1}}
MADE = (TABLE, "results/metrics/small.json", "results/plots/small.csv")


@pytest.fixture(scope="module")
def undisturbed(finished: Project, once: Callable[..., Path]) -> Project:
    """A study of some rounds with a checkpoint after each of them; it has ended."""

    def make(root: Path) -> None:
        place = project.copy(finished, root)
        start_over(place)
        place.settings(**OFTEN)
        place.study(**LONG)
        place.snakemake(TABLE)

    return Project(once("failures", make))


def start_over(place: Project) -> None:
    """Nothing is left but the data."""
    shutil.rmtree(place.root / "results")


def content(place: Project) -> list[bytes]:
    """What must come out the same."""
    return [(place.root / name).read_bytes() for name in MADE]


# Kills


def jobs(place: Project) -> list[psutil.Process]:
    """The training jobs of a project that are alive, orphans of a killed Snakemake too."""
    alive = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if words[3:7] == ["-P", "-m", "fl", "train"] and process.cwd() == str(place.root):
                alive.append(process)
    return alive


def kill(process: subprocess.Popen[str] | psutil.Process) -> None:
    with contextlib.suppress(ProcessLookupError, psutil.Error):
        process.kill()


def disturbed(place: Project, kind: str, moments: random.Random) -> bool:
    """Start the pipeline and kill what ``kind`` says; False if it ended before that."""
    process = place.start(REPORT)
    try:
        if kind == "snakemake":
            time.sleep(moments.uniform(0, 4))
        else:
            while process.poll() is None and not jobs(place):
                time.sleep(0.02)
            time.sleep(moments.uniform(0, 1.5))
        victims = jobs(place)
        if process.poll() is not None or (kind == "job" and not victims):
            return False
        if kind != "job":
            kill(process)
        for victim in victims[:1] if kind == "job" else victims * (kind == "both"):
            kill(victim)
        return True
    finally:
        process.communicate(timeout=300)


def test_kills_change_no_byte(undisturbed: Project, tmp_path: Path):
    place = project.copy(undisturbed, tmp_path / "project")
    start_over(place)
    moments = random.Random(6)
    kinds = [kind for kind in ("snakemake", "job", "both") for _ in range(KILLS)][: 3 * KILLS]
    moments.shuffle(kinds)
    kills: dict[str, int] = dict.fromkeys(kinds, 0)
    for kind in kinds:
        if disturbed(place, kind, moments):
            kills[kind] += 1
        elif (place.root / REPORT).exists():
            start_over(place)
        if sum(kills.values()) == KILLS:
            break
    assert sum(kills.values()) == KILLS
    assert min(kills.values()) > 0, kills
    place.snakemake()
    assert content(place) == content(undisturbed)
    assert "6 runs checked, 0 damaged" in fl(place, "store", "verify")
    assert "Nothing to be done" in place.snakemake("--dry-run")


# Disks


def test_a_store_on_a_full_disk_is_named_and_gone_on_with(
    small_disk: Path, finished: Project, tmp_path: Path
):
    place = project.copy(finished, tmp_path / "project")
    start_over(place)
    place.settings(store=str(small_disk / "runs"), **OFTEN)
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError):
        ballast.write_bytes(bytes(1 << 20))
    os.truncate(ballast, ballast.stat().st_size - 12 * 1024)
    output = place.snakemake(exit_status=1)
    assert "the disk is full; free some space, then start again" in output
    assert "Traceback" not in output
    ballast.unlink()
    place.snakemake(TABLE)
    assert content(place) == content(finished)
    assert all(not Store(small_disk / "runs").verify(run) for run in place.names())


def read_only(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Inside, nothing can be written below ``folder``, not by root either."""
    again = ["-o", "remount,ro,bind", str(folder)]
    return mounting.mounted(folder, ["--bind", str(folder), str(folder)], again)


def test_results_that_cannot_be_written_are_named_and_stay(copied: Project):
    copied.snakemake(REPORT)  # A copy is planned anew, as its code is at another place.
    before = content(copied)
    with read_only(copied.root / "results"):
        assert "Nothing to be done" in copied.snakemake()
        copied.study(methods={"fedavg": None}, seeds=[0, 1, 2])
        *_, error = copied.snakemake(exit_status=1).splitlines()
        assert error.startswith("error: results/plan: ")
        assert "the file system is read-only; make it writable" in error
    assert content(copied) == before
    assert copied.trained() == ["fedavg 2"]


# Clocks

COMPILER = shutil.which("cc")
DAY = 86400


@pytest.fixture
def clock(tmp_path: Path) -> Path:
    """A library that sets the wall clock wrong, see clock.c."""
    if COMPILER is None:
        pytest.skip("there is no C compiler")
    source, library = Path(__file__).with_name("clock.c"), tmp_path / "clock.so"
    command = [COMPILER, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source]
    subprocess.run(command, check=True)
    return library


@dataclass(frozen=True)
class Clocked(Project):
    """A project whose processes have the clock of a library."""

    library: Path

    @property
    def python(self) -> str:
        return preloaded.python(str(self.library))


def test_a_clock_that_goes_back_a_day_changes_nothing(
    undisturbed: Project, clock: Path, tmp_path: Path
):
    place = Clocked(project.copy(undisturbed, tmp_path / "project").root, clock)
    start_over(place)
    shift = tmp_path / "shift"
    process = place.start(REPORT, CLOCK_SHIFT=str(shift))
    partial, done = "results/runs/*.partial/checkpoint/round-*", "results/runs/*/run.json"
    until(lambda: any(place.root.glob(partial)) or any(place.root.glob(done)))
    shift.write_text(str(-DAY))
    for top in ("data", "results"):  # As files are that were written before the step.
        date_ahead(place.root / top, DAY)
    # Snakemake takes a job for failed whose output is older than its input; its runs are there.
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0 or "older modification time" in output, output
    before = place.records()
    assert before
    yesterday = time.strftime("%Y-%m-%d", time.localtime(time.time() - DAY))
    process = place.start(REPORT, CLOCK_SHIFT=str(shift))
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert f"Date: {yesterday} " in output, "the clock is wrong in processes that are forks, too"
    assert before.items() <= place.records().items()
    assert content(place) == content(undisturbed)
    assert Project(place.root).trained(REPORT) == []
    assert content(place) == content(undisturbed)


def date_ahead(folder: Path, seconds: float) -> None:
    """Date everything below a folder by so much later than it is."""
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            then = path.stat().st_mtime + seconds
            os.utime(path, (then, then))
