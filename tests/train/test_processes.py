"""A job of two processes, from outside: it leaves, goes on with another number, and fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import planning
import pytest
from planning import Planned

from fl.train import launch

ROUNDS = 60
Plan = Callable[..., Planned]


def job(study: Planned, label: str, store: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fl", *study.arguments(label, store)],
        env={**os.environ, "PYTHONPATH": str(planning.ROOT), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


def until(started: subprocess.Popen[str], text: str) -> str:
    """What the job says, up to a line with ``text``."""
    assert started.stderr is not None
    said = ""
    for line in started.stderr:
        said += line
        if text in line:
            return said
    raise AssertionError(said)


def children(process: int) -> list[int]:
    """The processes that a process started, in that order."""
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(word) for word in text.split()]


def of_processes(study: Planned, label: str, count: int) -> None:
    study.change(label, lambda bundle: bundle["execution"].update(processes=count))


@pytest.fixture
def study(planned: Plan) -> Planned:
    training = {**planning.STUDY["training"], "rounds": ROUNDS}
    found = planned(methods={"scaffold": None}, seeds=[0, 1], training=training)
    of_processes(found, "scaffold", 2)
    return found


def test_a_job_of_two_leaves_and_goes_on_as_one(study: Planned) -> None:
    started = job(study, "scaffold", "two")
    until(started, f"round {ROUNDS // 10}/{ROUNDS}")
    started.send_signal(signal.SIGTERM)
    said = started.communicate(timeout=120)[1]
    assert started.returncode == 75, said
    assert "left after round" in said and "Traceback" not in said
    [run, other] = study.runs("scaffold")
    assert study.checkpoints(run, "two")

    of_processes(study, "scaffold", 1)
    assert study.train("scaffold", "two") == 0
    assert study.train("scaffold", "one") == 0
    for name in (run, other):
        two, one = (study.store(store).metrics(name) for store in ("two", "one"))
        assert two.drop(columns="value").equals(one.drop(columns="value"))
        assert (two["value"] - one["value"]).abs().max() < 1e-3


def test_a_process_that_dies_ends_the_job_with_one_line(study: Planned) -> None:
    started = job(study, "scaffold", "runs")
    until(started, f"round {ROUNDS // 10}/{ROUNDS}")
    first, second = children(started.pid)
    os.kill(second, signal.SIGKILL)
    said = started.communicate(timeout=120)[1]
    assert started.returncode == 1, said
    assert "failed: process 1 of the job was ended by SIGKILL; memory may have run out" in said
    assert "Traceback" not in said
    deadline = time.monotonic() + 60
    while Path(f"/proc/{first}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{first}").exists()


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ({}, 0),
        ({0: 75}, 75),
        ({0: 1, 1: -signal.SIGTERM}, 1),
        ({0: 75, 1: -signal.SIGKILL}, 1),
        ({0: -signal.SIGKILL}, 1),
        ({0: -signal.SIGINT}, 130),
        ({0: 130}, 130),
    ],
)
def test_the_status_is_that_of_the_first_unless_another_died(
    failures: dict[int, int], expected: int
) -> None:
    assert launch.status(failures) == expected
