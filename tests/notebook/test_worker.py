"""Runs of another arithmetic than that of the process: trained in a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import worker_calls

import fl
from fl.base import arithmetic
from fl.base.errors import FedloomError
from fl.notebook import worker
from fl.notebook.training import TrainingInterrupted

pytestmark = pytest.mark.skipif(
    not arithmetic.can_be_portable(), reason="needs an x86-64 processor"
)

CALL: dict[str, Any] = {
    "dataset": {"synthetic": {"clients": 4, "samples": 40, "alpha": 1.0}},
    "partition": {"dirichlet": {"clients": 4, "alpha": 0.5, "min_samples": 5}},
    "model": {"mlp": {"hidden": [5]}},
    "methods": {"fedavg": None},
    "seeds": 1,
    "rounds": 3,
    "progress": False,
}
OTHER = arithmetic.NATIVE if arithmetic.current() == arithmetic.PORTABLE else arithmetic.PORTABLE


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # A process finds the functions of this test there.
    monkeypatch.setenv("PYTHONPATH", str(Path(worker_calls.__file__).parent))
    worker._workers.clear()


class Shouting:
    """A bar that keeps what it shows."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def describe(self, text: str) -> None:
        self.texts.append(text)


def test_a_run_of_another_arithmetic_is_recorded_as_such() -> None:
    arithmetics = [arithmetic.PORTABLE, arithmetic.NATIVE]
    result = fl.run(**CALL | {"methods": {"fedavg": {"arithmetic": arithmetics}}})
    runs = result.runs()
    assert set(runs["arithmetic"]) == {*arithmetics}
    assert runs["instructions"].nunique() == 2 or "avx512f" not in Path("/proc/cpuinfo").read_text()


def test_texts_come_from_the_process_of_another_arithmetic(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bar: Any = Shouting()
    first = worker.call(OTHER, worker_calls.shout, "hello", bar=bar)
    assert first != os.getpid() and bar.texts == ["hello"]
    assert capsys.readouterr().out == "hello\n"
    assert worker.call(OTHER, worker_calls.shout, "again", bar=bar) == first, "the process stays"
    assert worker.call(arithmetic.current(), worker_calls.shout, "here", bar=bar) == os.getpid()


def test_errors_come_from_the_process_of_another_arithmetic() -> None:
    bar: Any = Shouting()
    with pytest.raises(FedloomError, match="LocalError: on purpose"):
        worker.call(OTHER, worker_calls.fail, bar=bar)
    with pytest.raises(FedloomError, match="-9"):
        worker.call(OTHER, worker_calls.end, bar=bar)
    assert worker.call(OTHER, worker_calls.shout, "a new one", bar=bar) != os.getpid()


def test_ctrl_c_stops_the_process_of_another_arithmetic_and_the_call_continues() -> None:
    worker.call(OTHER, worker_calls.shout, "begin", bar=Shouting())
    long = CALL | {"rounds": 2000, "arithmetic": OTHER, "execution": {"checkpoint_every": 1}}

    def interrupt() -> None:
        while not [*Path("results/runs").glob("*.partial/checkpoint/*")]:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(TrainingInterrupted, match="the same call continues"):
        fl.run(**long)
    thread.join()
    [partial] = Path("results/runs").glob("*.partial")
    assert [*partial.glob("checkpoint/*")]


def test_a_script_without_a_guard_is_not_run_again_by_the_process() -> None:
    Path("script.py").write_text(
        f"import fl\nprint('begun')\nfl.run(**{CALL!r})\nprint('ended')\n", encoding="utf-8"
    )
    environment = {k: v for k, v in os.environ.items() if k not in arithmetic.VARIABLES}
    words = [sys.executable, "script.py"]
    environment["PYTHONPATH"] = str(Path(fl.__file__).parents[1])
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.splitlines() == ["begun", "ended"]
