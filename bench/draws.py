"""Draws of an entry in one stack, beside each alone: ``python -m bench.draws``.

A study of thirteen draws of a small data set on a network of linear layers: processor seconds of
``fedloom train``, of all draws in one process, and of each in a process of its own. Twice as many
rounds say how much of it is training. Processes take turns, ``--repeats`` times; the shortest time
of each counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from bench.runs import child

DRAWS = 13
METHODS: dict[str, Any] = {
    "fedavg": None,
    "ditto": None,
    "mk-mmd": {"method": "ditto", "lam": 0.0, "terms": {"mk-mmd": {"layers": ["features"]}}},
}
STUDY = {
    "datasets": [{"synthetic": {"seed": [*range(DRAWS)]}}],
    "partitions": [{"natural": {"val": 0.16, "test": 0.2}}],
    "models": [{"two-layer": {"head": "logits"}}],
    "seeds": "per-draw",
    "methods": METHODS,
}


def planned(folder: Path, rounds: int) -> dict[str, list[Path]]:
    """Plan the study in a folder, and prepare its data; its bundles by entry."""
    training = {"rounds": rounds, "local_steps": 100, "batch_size": 10, "evaluate_every": rounds}
    settings = {"studies": ["draws"], "execution": {"device": "cpu", "threads": 1}}
    config = folder / "config"
    (config / "studies").mkdir(parents=True)
    (config / "config.yaml").write_text(yaml.safe_dump(settings))
    study = yaml.safe_dump({**STUDY, "training": training})
    (config / "studies" / "draws.yaml").write_text(study)
    child([sys.executable, "-m", "fl", "plan", "--write"], folder)
    from fl.plan.bundle import read

    entries: dict[str, list[Path]] = {name: [] for name in METHODS}
    for path in sorted((folder / "results" / "plan" / "bundles").glob("*.json")):
        entries[read(path).runs[0].method].append(path)
    train(folder, entries["fedavg"], "first")  # Once, unmeasured: it prepares the data.
    return entries


def train(folder: Path, bundles: list[Path], store: str) -> float:
    """The processor's seconds of a process that trains bundles."""
    command = [sys.executable, "-m", "fl", "train", *map(str, bundles), "--store", store]
    return child(command, folder)[0]


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=1)
    asked = parser.parse_args()
    print("| | rounds | one stack, s | each alone, s | share |\n|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as root:
        for rounds in (asked.rounds, 2 * asked.rounds):
            folder = Path(root) / str(rounds)
            for entry, bundles in planned(folder, rounds).items():
                stack = alone = float("inf")
                for turn in range(asked.repeats):
                    stack = min(stack, train(folder, bundles, f"stack-{entry}-{turn}"))
                    times = [train(folder, [bundle], f"alone-{turn}") for bundle in bundles]
                    alone = min(alone, sum(times))
                share = stack / alone
                print(f"| {entry} | {rounds} | {stack:.1f} | {alone:.1f} | {share:.2f} |")


if __name__ == "__main__":
    main()
