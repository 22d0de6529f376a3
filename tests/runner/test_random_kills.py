"""SIGKILL at random moments, again and again until a run is finished: the bytes are the same.

``KILLS=20 KILL_SEED=7 pytest -s tests/runner/test_random_kills.py`` kills each run more often.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import killing
import numpy as np
import planning
import pytest

KILLS = int(os.environ.get("KILLS", "1"))
SEED = int(os.environ.get("KILL_SEED", time.time_ns() % 10**6))

CLIENTS = 8
UNEQUAL = {
    "log-normal": {"speed": 1e6, "speed_sigma": 1.0, "failure": 0.1, "present": 0.6, "day": 1}
}
FEDBUFF = {"fedbuff": {"size": 2, "concurrency": 5}}
METHODS: dict[str, dict[str, Any]] = {
    "fedbuff": {"method": "fedavg", "asynchronous": FEDBUFF},
    "ca2fl": {"method": "fedavg", "asynchronous": {"ca2fl": {"size": 2, "concurrency": 5}}},
    "oort": {
        "method": "fedavg",
        "selection": {"oort": {"window": 4}},
        "over_selection": 1.5,
        "deadline": 0.1,
    },
    "divfl": {"method": "fedavg", "selection": {"divfl": {"gradients": "last", "sample": 0.5}}},
    "ditto-fedbuff": {"method": "ditto", "asynchronous": FEDBUFF},
}


@pytest.mark.parametrize("label", METHODS)
def test_kills_at_random_moments_change_no_byte(tmp_path: Path, label: str) -> None:
    """A new run begins as long as there were too few kills."""
    study = planning.make(
        tmp_path,
        {"checkpoint_every": 1, "keep_state": True},
        datasets=[{"synthetic": {"clients": CLIENTS, "samples": 40, "alpha": 1.0}}],
        partitions=[{"dirichlet": {"clients": CLIENTS, "alpha": 0.5, "min_samples": 3}}],
        devices=UNEQUAL,
        training={**planning.STUDY["training"], "rounds": 10 + 2 * KILLS, "participation": 0.5},
        methods={label: METHODS[label]},
    )
    [run] = study.runs(label)
    begin = time.monotonic()
    assert train(study, label, "undisturbed") == 0
    seconds = time.monotonic() - begin
    assert {"metrics.parquet", "state.safetensors"} <= study.files(run, "undisturbed").keys()
    print(f"{label}: KILL_SEED={SEED}")
    random, reached, finished = np.random.default_rng(SEED), list[int](), 0
    while len(reached) < KILLS or not finished:
        if train(study, label, "killed", random.uniform(0, seconds)) == 0:
            assert study.files(run, "killed") == study.files(run, "undisturbed")
            shutil.rmtree(tmp_path / "killed")
            finished += 1
        else:
            checkpoints = study.checkpoints(run, "killed")
            reached.append(max([int(c.name.removeprefix("round-")) for c in checkpoints] or [0]))
    print(f"\n{label}: killed {len(reached)} times in {finished} runs, after {reached}")


def train(study: planning.Planned, label: str, store: str, limit: float | None = None) -> int:
    """Train in a process of its own, which is killed after some seconds; the exit status."""
    child = killing.context.Process(target=planned_status, args=(study, label, store))
    child.start()
    child.join(limit)
    child.kill()
    child.join()
    assert child.exitcode in (0, -9)
    return int(child.exitcode)


def planned_status(study: planning.Planned, label: str, store: str) -> None:
    """For a process of its own: train, and leave with the status of the job."""
    raise SystemExit(study.train(label, store))
