"""Whole runs on real digits, beside PFLlib where there is one: ``python -m bench.whole_runs``.

FedAvg and Ditto on an MLP and on a CNN, 30 rounds of 2 epochs, evaluated in each: once on 10
clients that differ in classes and sizes, batches of 16, and once on 60 alike, batches of 8. "Whole
process" is all that ``python -m fl train`` takes on data that are prepared; "inside" is what of
that is neither start nor imports.

PFLlib (`--pfllib`, a clone of it) trains networks of the same layers on the same samples of the
same clients, in the environment of `--python`, see `bench.peers_pfllib`: as it is, and with its
data in memory and no metric beside accuracy. Last batches that are not full are left out by both.
It evaluates on training samples too.

Every run is a process of one thread. Seconds are the processor's, which other programs disturb
least. Processes take turns, ``--repeats`` times; the shortest time of each counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

ROOT = Path(__file__).resolve().parents[1]
ROUNDS, EPOCHS, LR, LAM = 30, 2, 0.05, 0.1
SPLIT = {"val": 0.0, "test": 0.25}
PARTITIONS: dict[str, tuple[dict[str, Any], int]] = {
    "10 clients": ({"dirichlet": {"clients": 10, "alpha": 1.0, **SPLIT}}, 16),
    "60 alike": ({"homogeneous": {"clients": 60, **SPLIT}}, 8),
}
METHODS = {"fedavg": "FedAvg", "ditto": "Ditto"}
MODELS = {"mlp": "MLP", "cnn": "CNN"}
NONE = (
    "PFLlib is not measured beside: `{}` has no system/main.py. "
    "Clone github.com/TsingZ0/PFLlib and say: make bench PEERS=1 PFLLIB=that folder"
)


@dataclass(frozen=True)
class Run:
    """A run that both can do.

    bundle: for `fl train`. folder: where it is run; PFLlib finds the same samples there.
    """

    title: str
    method: str
    model: str
    clients: int
    batch: int
    rounds: int
    bundle: Path
    folder: Path


def planned(root: Path, rounds: int, only: str) -> list[Run]:
    """Every run whose title has ``only``, its data prepared; what PFLlib reads lies beside."""
    found = []
    for number, (title, (partition, batch)) in enumerate(PARTITIONS.items()):
        if not any(only in _title(m, n, title) for m in METHODS for n in MODELS):
            continue
        folder = root / str(number)
        write_config(folder / "config", partition, batch, rounds)
        child([sys.executable, "-m", "fl", "plan", "--write"], folder)
        bundles = sorted((folder / "results" / "plan" / "bundles").glob("*.json"))
        # Once, unmeasured: it prepares the data.
        child(trains(bundles[0], folder / "first"), folder)
        [clients] = [values["clients"] for values in partition.values()]
        write_for_peer(folder)
        for bundle in bundles:
            spec = json.loads(bundle.read_text())["runs"][0]["spec"]
            method, model = spec["method"]["name"], spec["model"]["name"]
            name = _title(method, model, title)
            found.append(Run(name, method, model, clients, batch, rounds, bundle, folder))
    return [run for run in found if only in run.title]


def _title(method: str, model: str, clients: str) -> str:
    return f"{METHODS[method]}, {MODELS[model]}, {clients}"


def write_config(config: Path, partition: Mapping[str, Any], batch: int, rounds: int) -> None:
    """A study of all methods and models on one partition."""
    training = {"rounds": rounds, "local_epochs": EPOCHS, "batch_size": batch, "lr": LR}
    study = {
        "datasets": ["digits"],
        "partitions": [dict(partition)],
        "models": list(MODELS),
        "seeds": [0],
        "training": {**training, "drop_last": True, "evaluate_every": 1},
        "methods": {"fedavg": None, "ditto": {"lam": LAM}},
    }
    settings = {"studies": ["whole"], "execution": {"device": "cpu", "threads": 1}}
    (config / "studies").mkdir(parents=True)
    (config / "config.yaml").write_text(yaml.safe_dump(settings))
    (config / "studies" / "whole.yaml").write_text(yaml.safe_dump(study))


def write_for_peer(folder: Path) -> None:
    """The samples of every client in the files that PFLlib reads, below ``dataset/MNIST``: for a
    data set of that name it takes images of one channel.
    """
    [prepared] = (folder / "data" / "prepared").iterdir()
    [table] = (folder / "results" / "partitions").glob("*/partition.parquet")
    about = json.loads((prepared / "dataset.json").read_text())["normalisation"]
    x, y = np.load(prepared / "x.npy"), np.load(prepared / "y.npy")
    x = ((x * about["scale"] - about["mean"]) / about["sd"]).astype(np.float32)
    for (split, client), held in pd.read_parquet(table).groupby(["split", "client"]):
        path = folder / "dataset" / "MNIST" / str(split) / f"{client}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = np.sort(held["sample"].to_numpy())
        np.savez(path, data=np.array({"x": x[rows], "y": y[rows]}, dtype=object))


def trains(bundle: Path, store: Path) -> list[str]:
    """The command that trains a bundle."""
    return [sys.executable, "-m", "fl", "train", str(bundle), "--store", str(store)]


def child(command: list[str], folder: Path) -> tuple[float, float]:
    """The processor's seconds of a process in a folder, and what it says last, if a number."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        said = output.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}\n{said[-3000:]}")
    return used.ru_utime + used.ru_stime, _last_number(said)


def _last_number(said: str) -> float:
    try:
        return float(said.split()[-1])
    except (IndexError, ValueError):
        return float("nan")


def inside(bundle: str, store: str) -> None:
    """Train a bundle and print the processor's seconds of that alone."""
    from fl.cli.loading import loading

    with loading():  # As the command does, which is not collecting garbage either then.
        from fl.plan.bundle import read
        from fl.store.store import Store
        from fl.train import job

    begun = time.process_time()
    failed = job.train_bundle(read(Path(bundle)), Store(Path(store)))
    assert not failed, failed
    print(time.process_time() - begun)


@dataclass
class Sides:
    """The shortest seconds so far, by side: ``fedloom``, ``pfllib``, ``lean``."""

    whole: dict[str, float]
    inside: dict[str, float]

    def take(self, side: str, whole: float | None, inside: float | None) -> None:
        """One more try."""
        for kept, seconds in ((self.whole, whole), (self.inside, inside)):
            if seconds is not None:
                kept[side] = min(seconds, kept.get(side, float("inf")))


def measure(run: Run, repeats: int, peer: Callable[[Run, bool], list[str]] | None) -> Sides:
    """The times of one run, each side in its turn."""
    sides = Sides({}, {})
    for turn in range(repeats):
        store = run.folder / f"{run.bundle.stem}-{turn}"
        whole, _ = child(trains(run.bundle, store), run.folder)
        alone = [sys.executable, "-m", "bench.whole_runs", "--inside", str(run.bundle)]
        _, within = child([*alone, f"{store}-inside"], run.folder)
        sides.take("fedloom", whole, within)
        if peer:
            for side, lean in (("pfllib", False), ("lean", True)):
                sides.take(side, *child(peer(run, lean), run.folder / "system"))
    return sides


def peer_command(python: str, folder: str) -> Callable[[Run, bool], list[str]]:
    """What trains a run with PFLlib; ``lean``: with data in memory, and accuracy alone."""

    def command(run: Run, lean: bool) -> list[str]:
        options = {
            "-data": "MNIST",
            "-m": "DNN" if run.model == "mlp" else "CNN",
            "-algo": METHODS[run.method],
            **{"-nc": run.clients, "-lbs": run.batch, "-ls": EPOCHS, "-pls": EPOCHS},
            **{"-lr": LR, "-mu": LAM, "-gr": run.rounds - 1, "-dev": "cpu"},
        }
        words = [str(word) for pair in options.items() for word in pair]
        driver = str(ROOT / "bench" / "peers_pfllib.py")
        return [python, driver, folder, "lean" if lean else "as-it-is", *words]

    return command


def show(run: Run, sides: Sides) -> str:
    """A row of the table."""
    cells = []
    for kept, others in ((sides.whole, ["pfllib"]), (sides.inside, ["pfllib", "lean"])):
        own = kept["fedloom"]
        cells.append(f"{own:.1f}")
        cells += [f"{kept[o]:.1f} ({kept[o] / own:.1f}x)" if o in kept else "-" for o in others]
    return f"| {run.title} | " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pfllib", default="", help="a clone of PFLlib")
    parser.add_argument("--python", default=sys.executable, help="one that has what PFLlib needs")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="fewer for a rehearsal")
    parser.add_argument("--only", default="", help="runs whose title has this")
    parser.add_argument("--inside", nargs=2, metavar=("BUNDLE", "STORE"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        inside(*asked.inside)
        return
    there = (Path(asked.pfllib) / "system" / "main.py").is_file()
    folder = str(Path(asked.pfllib).resolve())
    peer = peer_command(asked.python, folder) if asked.pfllib and there else None
    print("Whole runs on digits, processor seconds; how many times ours is PFLlib's in brackets.\n")
    if peer is None:
        print(NONE.format(asked.pfllib) + "\n")
    print("| | whole process | PFLlib | inside | PFLlib | PFLlib, data in memory, accuracy only |")
    print("|---|---:|---:|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory() as place:
        for run in planned(Path(place), asked.rounds, asked.only):
            print(show(run, measure(run, asked.repeats, peer)), flush=True)


if __name__ == "__main__":
    main()
