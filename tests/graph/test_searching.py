"""``fedloom search`` with the real Snakemake: two ordinary studies, whatever ends it before."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import project
import pytest
import yaml

pytestmark = pytest.mark.graph

SEARCH: dict[str, Any] = {
    "trials": 4,
    "batch": 2,
    "seeds": [7],
    "training": {"lr": {"log_uniform": [1e-3, 1]}},
    "methods": {"fedprox": {"mu": {"uniform": [0, 1]}}},
}


def test_a_search_that_is_killed_ends_in_two_studies_that_are_trained(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="the package of searches (make extras)")
    place = project.create(tmp_path / "lab")
    place.study(methods={"fedavg": None, "fedprox": None}, search=SEARCH)
    store, studies = place.root / "results/runs", place.root / "config/studies"
    began = subprocess.Popen(
        [sys.executable, "-m", "fl", "search", "small"],
        cwd=place.root,
        env=project.ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    project.until(lambda: len([*store.glob("*/run.json")]) > 4 or began.poll() is not None)
    os.killpg(began.pid, signal.SIGKILL)
    assert began.wait() == -signal.SIGKILL
    early = yaml.safe_load((studies / "small-trials.yaml").read_text())["methods"]["fedavg"]["lr"]
    output = project.fl(place, "search", "small")
    assert "fedavg: 4 trials" in output and "4 of 4 trials of each entry" in output
    trials = pd.read_csv(place.root / "results/search/small.csv")
    assert trials.groupby("entry").size().to_dict() == {"fedavg": 4, "fedprox": 4}
    late = yaml.safe_load((studies / "small-trials.yaml").read_text())
    rates = late["methods"]["fedavg"]["lr"]["together"]
    assert rates == [*trials[trials["entry"] == "fedavg"]["hp.lr"]] and late["seeds"] == [7]
    assert rates[: len(early["together"])] == early["together"]
    chosen = yaml.safe_load((studies / "small-chosen.yaml").read_text())
    best = trials[trials["chosen"]].set_index("entry")["hp.lr"].to_dict()
    assert {label: entry["lr"] for label, entry in chosen["methods"].items()} == best
    assert "search" not in chosen and chosen["seeds"] == [0, 1]
    project.fl(place, "report", "small-trials")
    page = (place.root / "results/report/small-trials.html").read_text()
    assert "4 trials of each entry" in page
    assert all(f"lr={rate:g}" in page for rate in rates)
    (studies / "small-chosen.yaml").write_text("title: mine\n")
    assert "small-chosen.yaml" in project.fl(place, "search", "small", exit_status=1)


@pytest.mark.parametrize("command", ["run", "search"])
def test_a_request_to_end_reaches_snakemake_and_its_jobs(command: str, tmp_path: Path) -> None:
    """As of a scheduler or a service, which send it to one process alone."""
    if command == "search":
        pytest.importorskip("optuna", reason="the package of searches (make extras)")
    place = project.create(tmp_path / "lab")
    training = {"rounds": 100_000, "batch_size": 16, "lr": 0.05}
    search = {"trials": 1, "training": {"lr": {"choice": [0.1, 0.2]}}}
    place.study(methods={"fedavg": None}, search=search, training=training, seeds=1)
    began = subprocess.Popen(
        [sys.executable, "-m", "fl", command, "small"],
        cwd=place.root,
        env=project.ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        partial = "results/runs/*.partial/checkpoint/round-*"
        project.until(lambda: any(place.root.glob(partial)) or began.poll() is not None)
        began.send_signal(signal.SIGTERM)
        errors = began.communicate(timeout=120)[1]
        assert began.returncode == 1 and "the same command continues" in errors
        with pytest.raises(ProcessLookupError):
            os.killpg(began.pid, 0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(began.pid, signal.SIGKILL)
