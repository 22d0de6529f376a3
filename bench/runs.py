"""Whole runs on real digits, beside PFLlib where there is one: ``python -m bench.runs``.

FedAvg and Ditto (``--methods`` names others) on an MLP and on a CNN, 30 rounds of 2 epochs,
evaluated in each: once on 10 clients that differ in classes and sizes, batches of 16, and once on
60 alike, batches of 8. "Whole process" is all that ``fedloom train`` takes on data that are
prepared; "inside" is what of that is neither start nor imports.

PFLlib (`--pfllib`, a clone of it) trains networks of the same layers on the same samples of the
same clients, in the environment of `--python`, see `bench.pfllib`: as it is, and with its data in
memory and no metric beside accuracy. Last batches that are not full are left out by both. It
evaluates on training samples too. `METHODS` has the keys of both sides, which are for equal epochs;
where PFLlib's method departs from its paper (docs/guide/peers.md), it departs here as well.

Every run is a process of one thread. Seconds are the processor's, which other programs disturb
least. Processes take turns, ``--repeats`` times; the shortest time of each counts. ``--processes``
measures by the clock what several processes save of one run instead.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

ROOT = Path(__file__).resolve().parents[1]
ROUNDS, EPOCHS, LR = 30, 2, 0.05
SPLIT = {"val": 0.0, "test": 0.25}
PARTITIONS: dict[str, tuple[dict[str, Any], int]] = {
    "10 clients": ({"dirichlet": {"clients": 10, "alpha": 1.0, **SPLIT}}, 16),
    "60 alike": ({"homogeneous": {"clients": 60, **SPLIT}}, 8),
}


@dataclass(frozen=True)
class PeerMethod:
    """A method of both: PFLlib's name of it, keys here, and PFLlib's options with these values."""

    title: str
    keys: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


METHODS = {
    "fedavg": PeerMethod("FedAvg"),
    "ditto": PeerMethod("Ditto", {"lam": 0.1}, {"-mu": 0.1, "-pls": EPOCHS}),
    "fedper": PeerMethod("FedPer"),
    "lg-fedavg": PeerMethod("LG-FedAvg"),
    "fedrep": PeerMethod("FedRep", {"head_epochs": EPOCHS}, {"-pls": EPOCHS}),
    "apfl": PeerMethod("APFL", {"alpha": 0.5}, {"-al": 0.5}),
    # PFLlib's first phase of shares ends after 11 epochs at the earliest.
    "fedala": PeerMethod("FedALA", {"start_epochs": 11}, {"-et": 1.0, "-s": 100, "-p": 2}),
    "fedcp": PeerMethod("FedCP", {"lam": 5.0}, {"-lam": 5.0}),
    "feddbe": PeerMethod("FedDBE", {"kappa": 50.0, "mu": 1.0}, {"-klw": 50.0, "-mo": 1.0}),
    "fedas": PeerMethod("FedAS"),
    "fedpac": PeerMethod("FedPAC", {"lam": 1.0}, {"-lam": 1.0}),
    "fedntd": PeerMethod("FedNTD", {"beta": 1.0, "tau": 1.0}, {"-bt": 1.0, "-tau": 1.0}),
    "fedphp": PeerMethod("FedPHP", {"lam": 0.1, "mu": 0.9}, {"-lam": 0.1, "-mu": 0.9}),
    "gpfl": PeerMethod("GPFL", {"lam": 0.01, "mu": 0.1}, {"-lam": 0.01, "-mu": 0.1}),
    "fml": PeerMethod("FML", {"alpha": 0.5, "beta": 0.5}, {"-al": 0.5, "-bt": 0.5}),
}
MODELS = {"mlp": "MLP", "cnn": "CNN"}
NONE = (
    "PFLlib is not measured beside: `{}` has no system/main.py. "
    "Clone github.com/TsingZ0/PFLlib and say: make bench PFLLIB=that-folder"
)


@dataclass(frozen=True)
class Run:
    """A run that both can do.

    bundle: for `fedloom train`. folder: where it is run; PFLlib finds the same samples there.
    """

    method: str
    model: str
    partition: str
    rounds: int
    bundle: Path
    folder: Path

    @property
    def title(self) -> str:
        """Its name in the table."""
        return f"{METHODS[self.method].title}, {MODELS[self.model]}, {self.partition}"


def planned(
    root: Path, rounds: int, methods: Sequence[str] = ("fedavg", "ditto"), **execution: Any
) -> Iterator[Run]:
    """Every run of some methods, its data prepared; what PFLlib reads lies beside."""
    for title, (partition, batch) in PARTITIONS.items():
        folder = root / title.replace(" ", "-")
        write_config(folder / "config", partition, batch, rounds, methods, execution)
        child([sys.executable, "-m", "fl", "plan", "--write"], folder)
        bundles = sorted((folder / "results" / "plan" / "bundles").glob("*.json"))
        # Once, unmeasured: it prepares the data.
        child(trains(bundles[0], folder / "first"), folder)
        write_for_peer(folder)
        for bundle in bundles:
            spec = json.loads(bundle.read_text())["runs"][0]["spec"]
            names = spec["method"]["name"], spec["model"]["name"]
            yield Run(*names, title, rounds, bundle, folder)


def write_config(
    config: Path,
    partition: Mapping[str, Any],
    batch: int,
    rounds: int,
    methods: Sequence[str],
    execution: Mapping[str, Any],
) -> None:
    """A study of some methods and all models on one partition."""
    training = {"rounds": rounds, "local_epochs": EPOCHS, "batch_size": batch, "lr": LR}
    study = {
        "datasets": ["digits"],
        "partitions": [dict(partition)],
        "models": list(MODELS),
        "seeds": [0],
        "training": {**training, "drop_last": True, "evaluate_every": 1},
        "methods": {name: METHODS[name].keys for name in methods},
    }
    how = {"device": "cpu", "threads": 1, **execution}
    (config / "studies").mkdir(parents=True)
    (config / "config.yaml").write_text(yaml.safe_dump({"studies": ["whole"], "execution": how}))
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
    from fl.cli.commands import loading

    with loading():  # As the command does, which is not collecting garbage either then.
        from fl.plan.bundle import read
        from fl.runner import job
        from fl.store.store import Store

    begun = time.process_time()
    failed = job.train_bundle(read(Path(bundle)), Store(Path(store)))
    assert not failed, failed
    print(time.process_time() - begun)


Times = dict[str, float]
"""The shortest seconds so far, by side: ``fedloom``, ``pfllib``, ``lean``."""


def measure(
    run: Run, repeats: int, peer: Callable[[Run, bool], list[str]] | None
) -> tuple[Times, Times]:
    """The times of one run, each side in its turn: of whole processes, and inside."""
    whole: list[Times] = []
    inner: list[Times] = []
    for turn in range(repeats):
        store = run.folder / f"{run.bundle.stem}-{turn}"
        alone = [sys.executable, "-m", "bench.runs", "--inside", str(run.bundle)]
        tries = {
            "fedloom": (
                child(trains(run.bundle, store), run.folder)[0],
                child([*alone, f"{store}-inside"], run.folder)[1],
            )
        }
        if peer:
            for side, lean in (("pfllib", False), ("lean", True)):
                tries[side] = child(peer(run, lean), run.folder / "system")
        whole.append({side: seconds for side, (seconds, _) in tries.items()})
        inner.append({side: seconds for side, (_, seconds) in tries.items()})
    best = [{side: min(t[side] for t in times) for side in times[0]} for times in (whole, inner)]
    return best[0], best[1]


def program(python: str, parser: argparse.ArgumentParser) -> str:
    """The absolute path of ``--python``, as peers run in folders of their own.

    A link stays: it leads out of the environment whose packages the peer needs.
    """
    path = shutil.which(python)
    if path is None:
        parser.error(f"--python: {python!r} is no program. Allowed: a path, or a name in PATH")
    return str(Path(path).absolute())


def peer_command(python: str, folder: str) -> Callable[[Run, bool], list[str]]:
    """What trains a run with PFLlib; ``lean``: with data in memory, and accuracy alone."""

    def command(run: Run, lean: bool) -> list[str]:
        partition, batch = PARTITIONS[run.partition]
        [clients] = [values["clients"] for values in partition.values()]
        options = {
            "-data": "MNIST",
            "-m": "DNN" if run.model == "mlp" else "CNN",
            "-algo": METHODS[run.method].title,
            **{"-nc": clients, "-lbs": batch, "-ls": EPOCHS},
            **{"-lr": LR, "-gr": run.rounds - 1, "-dev": "cpu"},
            **METHODS[run.method].options,
        }
        words = [str(word) for pair in options.items() for word in pair]
        driver = str(ROOT / "bench" / "pfllib.py")
        return [python, driver, folder, "lean" if lean else "as-it-is", *words]

    return command


def show(run: Run, whole: Times, inner: Times) -> str:
    """A row of the table."""
    cells = []
    for times, others in ((whole, ["pfllib"]), (inner, ["pfllib", "lean"])):
        ours = times["fedloom"]
        cells.append(f"{ours:.1f}")
        for other in others:
            there = other in times
            cells.append(f"{times[other]:.1f} ({times[other] / ours:.1f}x)" if there else "-")
    return f"| {run.title} | " + " | ".join(cells) + " |"


def processes(root: Path, rounds: int) -> str:
    """What two processes save of FedAvg by the loop, on the CNN and 60 clients alike."""
    times = []
    for count in (1, 2):
        settings = {"backend": "loop", "processes": count}
        for run in planned(root / str(count), rounds, **settings):
            if (run.method, run.model, run.partition) == ("fedavg", "cnn", "60 alike"):
                begun = time.perf_counter()
                child(trains(run.bundle, run.folder / "timed"), run.folder)
                times.append(time.perf_counter() - begun)
    one, two = times
    return f"{rounds} rounds: one process {one:.1f} s, two {two:.1f} s, {one / two:.2f}x"


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pfllib", default="", help="a clone of PFLlib")
    parser.add_argument("--python", default=sys.executable, help="one that has what PFLlib needs")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="fewer for a rehearsal")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["fedavg", "ditto"])
    parser.add_argument("--only", default="", help="runs whose title has this")
    parser.add_argument("--processes", action="store_true", help="one process beside two")
    parser.add_argument("--inside", nargs=2, metavar=("BUNDLE", "STORE"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.python = program(asked.python, parser)
    if asked.inside:
        inside(*asked.inside)
        return
    with tempfile.TemporaryDirectory() as place:
        if asked.processes:
            print(processes(Path(place), asked.rounds))
            return
        compare(Path(place), asked)


def compare(place: Path, asked: argparse.Namespace) -> None:
    """Print the table in Markdown."""
    there = (Path(asked.pfllib) / "system" / "main.py").is_file()
    folder = str(Path(asked.pfllib).resolve())
    peer = peer_command(asked.python, folder) if asked.pfllib and there else None
    print("Whole runs on digits, processor seconds; how many times ours is PFLlib's in brackets.\n")
    if peer is None:
        print(NONE.format(asked.pfllib) + "\n")
    print("| | whole process | PFLlib | inside | PFLlib | PFLlib, data in memory, accuracy only |")
    print("|---|---:|---:|---:|---:|---:|", flush=True)
    for run in planned(place, asked.rounds, asked.methods):
        if asked.only in run.title:
            print(show(run, *measure(run, asked.repeats, peer)), flush=True)


if __name__ == "__main__":
    main()
