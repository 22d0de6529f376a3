"""The backend that `auto` stands for: the same for the same spec and data, wherever it is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import worlds
from modal_worlds import world as two_kinds

from fl.engine.simulation import Simulation
from fl.runner import job

LONG = {"rounds": 10_000, "arithmetic": "native"}


def world(*choices: Any, **training: Any) -> Simulation:
    """As `fl.engine.assembly` makes it: with a network that has been tried."""
    made = worlds.world(*choices, **training)
    made.network.probe(made.arrays.inputs(torch.zeros(1, dtype=torch.int64)))
    return made


@pytest.mark.parametrize(
    ("simulation", "backend", "why"),
    [
        (lambda: world("fedavg", **LONG), "compiled", "60,000 steps of"),
        (
            lambda: world("fedavg", rounds=6_000, arithmetic="native"),
            *("stacked", "36,000 steps; compiling is worthwhile"),
        ),
        (lambda: world("fedavg", rounds=10_000), "stacked", "bits depend on the compiler"),
        (lambda: world("fedavg", "cnn", **LONG), "stacked", "plain layers with convolutions"),
        (lambda: two_kinds("fedavg", classifier="own", **LONG), "stacked", "different networks"),
        (lambda: world("fedavg", participation=0.25, **LONG), "loop", "one client takes part"),
        (lambda: world("pfedme", "mlp", {"steps": 3}, **LONG), "compiled", "180,000 steps of"),
    ],
)
def test_the_backend_follows_from_the_spec_and_the_data(
    simulation: Any, backend: str, why: str
) -> None:
    run: Any = simulation()
    choice = job.choose_backend(run)
    assert choice.backend == backend and why in choice.reason
    for seed in (1, 2):
        changes = (
            {"joint": replace(run.joint, seed=seed)} if hasattr(run, "joint") else {"seed": seed}
        )
        assert job.choose_backend(replace(run, **changes)) == choice, "the same for every seed"


def test_steps_of_many_calls_or_many_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    run = world("fedavg", **LONG)
    monkeypatch.setattr(job, "MAX_COMPILED_CALLS", 10)
    choice = job.choose_backend(run)
    assert choice.backend == "stacked" and "calls in a step" in choice.reason
    run.network.is_sequence = False
    assert job.choose_backend(run).backend == "stacked"
    monkeypatch.setattr(job, "LARGE_STEP_FLOPS", 100)
    choice = job.choose_backend(run)
    assert choice.backend == "loop" and "operations in a step" in choice.reason


def test_what_cannot_be_stacked_is_trained_one_by_one() -> None:
    choice = job.choose_backend(world("fedavg", **LONG), "a branch on data")
    assert choice == ("loop", "clients cannot be stacked: a branch on data")
