"""What choosing a backend costs: the trial against the training that it is for, in one run.

For each workload a whole training of some rounds is timed, then a trial for that training, in turn,
``--repeats`` times; medians count, as one slow moment is one of the machine. The second column of
ratios is of a job that finds the answer of another one.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import nn

from bench import machine
from bench.asked import one_of
from bench.local_steps import MODELS, simulation
from bench.workloads import WORKLOADS, Workload
from fl.engine import simulate
from fl.engine.simulate import Simulation
from fl.models.cnn import CNN
from fl.train import trial
from fl.train.candidates import Candidates
from fl.train.learnt import Learnt, Subject

SHAPE = (1, 8, 8)
SIDES: dict[str, tuple[Workload, Callable[[], nn.Module], int]] = {
    "30": (
        Workload("30 clients x 48 of 1x8x8, CNN, batch 16", 30, 48, SHAPE, 16, 1),
        lambda: CNN().build(SHAPE, 10),
        20,
    ),
    "30-long": (
        Workload("the same, 500 rounds", 30, 48, SHAPE, 16, 1),
        lambda: CNN().build(SHAPE, 10),
        500,
    ),
    "W1": (WORKLOADS["W1"], MODELS["W1"], 4),
}
"""By name: what is trained, its model, and the rounds of a run."""


@dataclass(frozen=True)
class Times:
    """Seconds of a training, of a trial for it, of a choice that is known; and what was chosen."""

    training: float
    trial: float
    known: float
    backend: str


def measure(run: Simulation, rounds: int, trained: int, repeats: int) -> Times:
    """The times of a run of so many rounds; only ``trained`` of them are computed."""
    run = replace(run, training=replace(run.training, rounds=rounds, evaluate_every=rounds))
    candidates = Candidates.of([run], [run.begin()])
    subject = Subject("bench", {}, {"core": "", "model": "", "torch": ""})
    backend = trial.choose(candidates, Learnt(None, subject)).backend  # Warms up.
    spent: dict[str, list[float]] = {"training": [], "trial": [], "known": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            kept = Learnt(Path(folder), subject)
            calls: dict[str, Callable[[], object]] = {
                "training": partial(_train, run, trained, backend),
                "trial": partial(_choose, run, kept),
                "known": partial(_choose, run, kept),
            }
            for what, call in calls.items():
                begun = time.perf_counter()
                call()
                spent[what].append(time.perf_counter() - begun)
    middle = {what: statistics.median(times) for what, times in spent.items()}
    return Times(
        *(middle["training"] * rounds / trained, middle["trial"], middle["known"], backend)
    )


def _train(run: Simulation, rounds: int, backend: str) -> None:
    each = simulate.rounds(run, run.begin(), 0, backend)
    for _ in range(rounds):
        next(each)


def _choose(run: Simulation, kept: Learnt) -> trial.Choice:
    return trial.choose(Candidates.of([run], [run.begin()]), kept)


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sides", nargs="*", type=one_of(SIDES), default=list(SIDES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20, help="rounds that are timed, at most")
    asked = parser.parse_args()
    machine.begin("a trial as a share of the training that it is for")
    print("| | rounds | training, s | trial | known | chosen |")
    print("|---|---:|---:|---:|---:|---|")
    for name in asked.sides:
        work, model, rounds = SIDES[name]
        run = simulation(work, model, "cpu")
        found = measure(run, rounds, min(rounds, asked.rounds), asked.repeats)
        shares = " | ".join(f"{100 * t / found.training:.2f} %" for t in (found.trial, found.known))
        told = f"{found.training:.1f} | {shares} | {found.backend}"
        print(f"| {work.title} | {rounds} | {told} |", flush=True)


if __name__ == "__main__":
    main()
