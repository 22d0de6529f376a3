"""A tiny study in a folder of its own, planned; and training it, whole or interrupted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from fl.base import identity
from fl.base.dataclass_json import as_json
from fl.base.files import write_json
from fl.cli import main
from fl.engine.simulate import Round
from fl.plan import plan
from fl.plan.run_spec import RunSpec
from fl.runner import runs
from fl.store.store import Store

ROOT = Path(__file__).resolve().parents[2]
"""The repository, for processes started elsewhere."""

STUDY: dict[str, Any] = {
    "datasets": [{"synthetic": {"clients": 4, "samples": 40, "alpha": 1.0}}],
    "partitions": [{"dirichlet": {"clients": 4, "alpha": 0.5, "min_samples": 5}}],
    "models": [{"mlp": {"hidden": [5]}}],
    "seeds": [0],
    "training": {"rounds": 6, "batch_size": 8, "lr": 0.05, "momentum": 0.9},
    "methods": {"fedavg": None},
}
EXECUTION = {"backend": "stacked", "device": "cpu", "threads": 1, "checkpoint_every": 2}


@dataclass(frozen=True)
class Planned:
    """A study's bundles, each in a file ``<entry>.json``; data and partitions below ``root``."""

    root: Path

    def spec(self, label: str) -> Path:
        return self.root / f"{label}.json"

    def bundle(self, label: str) -> dict[str, Any]:
        return dict(json.loads(self.spec(label).read_text()))

    def change(self, label: str, edit: Callable[[dict[str, Any]], Any]) -> None:
        """Rewrite a bundle's file after ``edit`` changed its content; its runs are named by it."""
        content = self.bundle(label)
        edit(content)
        for member in content["runs"]:
            member["defaults"] = RunSpec(member["spec"]).default_keys
            point = identity.point_id(member["spec"], member["code"], member["defaults"])
            member["run"] = identity.run_id(point, member["spec"]["seed"])
        write_json(self.spec(label), content)

    def runs(self, label: str) -> list[str]:
        return [member["run"] for member in self.bundle(label)["runs"]]

    def store(self, name: str = "runs") -> Store:
        return Store(self.root / name)

    def arguments(self, label: str, store: str = "runs") -> list[str]:
        return ["train", str(self.spec(label)), "--store", str(self.root / store)]

    def train(self, label: str, store: str = "runs") -> int:
        """``python -m fl train`` in this process; its exit status."""
        return main.main(self.arguments(label, store))

    def checkpoints(self, run: str, store: str = "runs") -> list[Path]:
        """The checkpoints of an unfinished run, oldest first."""
        folder = self.root / store / f"{run}.partial" / "checkpoint"
        return sorted(folder.glob("round-*"))

    def log(self, run: str) -> Path:
        """The log of a run's events."""
        return self.root / "results" / "logs" / "runs" / f"{run}.jsonl"

    def files(self, run: str, store: str = "runs") -> dict[str, bytes]:
        """What a finished run's numbers are kept in, byte by byte."""
        folder = self.root / store / run
        return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "run.json"}


def write_config(
    root: Path, study: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
) -> Path:
    """A config folder with the one study ``tiny``; ``study`` and ``settings`` change its keys."""
    config = root / "config"
    (config / "studies").mkdir(parents=True)
    (config / "methods").mkdir()
    places = {"results": root / "results", "store": root / "runs", "data": root / "data"}
    base = {"studies": ["tiny"], "execution": EXECUTION}
    base.update({key: str(path) for key, path in places.items()})
    (config / "config.yaml").write_text(yaml.safe_dump({**base, **(settings or {})}))
    write_study(root, study or {})
    return config


def write_study(root: Path, study: Mapping[str, Any]) -> None:
    """The study ``tiny``, with these keys changed."""
    path = root / "config" / "studies" / "tiny.yaml"
    path.write_text(yaml.safe_dump({**STUDY, **study}))


def make(
    root: Path,
    execution: Mapping[str, Any] | None = None,
    plugins: Sequence[Path] = (),
    **study: Any,
) -> Planned:
    """The tiny study changed by ``study``, planned in the folder ``root``."""
    settings = {
        "execution": {**EXECUTION, **(execution or {})},
        "plugins": [str(folder) for folder in plugins],
    }
    found = plan.make(write_config(root, study, settings))
    for run in found.studies["tiny"].runs:
        write_json(root / f"{run.method}.json", as_json(found.bundles[run.bundle]))
    return Planned(root)


@contextlib.contextmanager
def signalled(after: int, number: int = signal.SIGTERM) -> Iterator[None]:
    """Inside, this process gets a signal when round ``after`` of a run is over, and none before: a
    job leaves at a signal from elsewhere too, such as that of `timeout` around the tests.
    """
    reached = False

    class Signalling(runs.Progress):
        def show(self, finished: Mapping[str, Round]) -> None:
            nonlocal reached
            super().show(finished)
            if next(iter(finished.values())).number == after:
                reached = True
                os.kill(os.getpid(), number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fl.runner.job.Progress", Signalling)
        yield
    assert reached, f"no run came to round {after}: did the tests get a signal?"


def train_and_die(planned: Planned, label: str, store: str, after: int) -> None:
    """For a process of its own: train until it kills itself at the end of round ``after``."""
    with signalled(after, signal.SIGKILL):
        planned.train(label, store)
