"""A job of two processes, from outside: it leaves, goes on with another number, and fails."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import planning
import pytest
from planning import Planned

from fl.base.errors import ConfigError
from fl.plan.config import Execution, Node
from fl.runner import job_processes
from fl.workflow import jobs
from fl.workflow.jobs import Job

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
    said = started.communicate(timeout=600)[1]
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


DIES = """
import os, signal, time
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""


def test_a_process_that_dies_ends_the_job_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert job_processes.launch(2, ["-c", DIES]) == 1
    said = "failed: process 1 of the job was ended by SIGKILL; memory may have run out\n"
    assert capsys.readouterr().err == said
    assert signal.getsignal(signal.SIGTERM) is before


MEETS = """
import os
from pathlib import Path
import torch.distributed as dist
from fl.runner.team import Team
team = Team()
assert team.exchange(team.rank) == [0, 1]
files = (Path(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
mine = {os.readlink(file) for file in files if file.is_symlink()}
lines = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
rows = [line.split() for line in lines.splitlines() if ":" in line]
listening = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine]
assert listening and all(place.startswith("0100007F:") for place in listening), listening
team.exchange()
dist.destroy_process_group()
"""


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the kernel tells on Linux alone")
def test_processes_listen_on_the_loopback_interface_alone() -> None:
    assert job_processes.launch(2, ["-c", MEETS]) == 0


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ({}, 0),
        ({0: 75}, 75),
        ({0: 75, 1: -signal.SIGKILL}, 1),
        ({0: 130}, 130),
    ],
)
def test_the_status_is_that_of_the_first_unless_another_died(
    failures: dict[int, int], expected: int
) -> None:
    assert job_processes.exit_status(failures) == expected


def test_a_job_asks_for_what_each_process_needs() -> None:
    execution = Execution(processes=4, threads=2, memory_mb=500, device="cuda")
    assert jobs.threads(execution) == 8
    assert jobs.gpus(execution) == 4
    assert jobs.gpus(replace(execution, gpus=0)) == 0
    job = Job("train", "", [], [], [], [], [], execution, store="runs")
    assert jobs.memory(job) == 2000
    node = Node(cpus=7, memory_mb=1999, gpus=3)
    lacking = [
        "8 cpus (the node has 7)",
        "2000 memory_mb (the node has 1999)",
        "4 gpus (the node has 3)",
    ]
    assert node.shortages(replace(execution, gpus=1)) == lacking


def test_processes_that_cannot_be_are_refused(tmp_path: Path) -> None:
    said = {}
    for name, execution in (("many", {"processes": 5}), ("debug", {"backend": "debug"})):
        with pytest.raises(ConfigError) as caught:
            planning.make(tmp_path / name, {"processes": 2, **execution})
        said[name] = str(caught.value).split("config.yaml: ")[1]
    assert re.match(r"execution\.processes: .*\b5\b.*\b4 clients.*Allowed: 1 to 4", said["many"])
    assert re.match(r"execution\.processes: .*\b2\b.*debug.*Allowed: 1\b", said["debug"])
