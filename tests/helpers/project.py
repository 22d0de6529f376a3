"""A small project in a folder of its own: a copy of the code, and a config that takes seconds."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import preloaded
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
CODE = ("Snakefile", "workflow", "profiles", "slurm", "fl")
TABLE = "results/tables/small.parquet"
REPORT = "results/report/small.html"

SETTINGS: dict[str, Any] = {
    "studies": ["small"],
    "execution": {"backend": "loop", "device": "cpu"},
}
STUDY: dict[str, Any] = {
    "title": "Three small methods",
    "datasets": [{"synthetic": {"clients": 4, "samples": 60, "alpha": 0.5, "beta": 0.5}}],
    "partitions": ["natural"],
    "models": [{"two-layer": {"head": "logits"}}],
    "seeds": [0, 1],
    "training": {"rounds": 2, "batch_size": 16, "lr": 0.05},
    "methods": {
        "fedavg": None,
        "fedprox": {"mu": 0.5},
        "fedavg-ft": {"method": "finetune", "start": "fedavg", "rounds": 1},
    },
}

# Python's own settings could lead to other code than the copy.
ENVIRONMENT = {key: text for key, text in os.environ.items() if not key.startswith("PYTHON")}


@dataclass(frozen=True)
class Project:
    """A folder with Snakefile, workflow, profiles, fl and config."""

    root: Path

    @property
    def python(self) -> str:
        """The Python of its processes."""
        return preloaded.python()

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """A Snakemake that is on its way, in a process group of its own."""
        return subprocess.Popen(
            [self.python, "-m", "snakemake", *arguments],
            cwd=self.root,
            env={**ENVIRONMENT, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def snakemake(self, *arguments: str, exit_status: int = 0) -> str:
        """The output of a Snakemake, after it has ended as expected."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=600)
        assert process.returncode == exit_status, output
        return output

    def trained(self, *targets: str) -> list[str]:
        """The runs that a Snakemake for ``targets`` trained, ``fedprox 0`` with their seed.

        It may have started no job for any other bundle.
        """
        before = self.records()
        output = self.snakemake(*(targets or [TABLE]))
        found = self.since(before)
        assert self.started(output) == {self.bundle(name) for name in found}, output
        return found

    def started(self, output: str) -> set[str]:
        """The bundles of the jobs of which a Snakemake said that it starts them."""
        names = re.findall(r": train .*, log \S*/([\w-]+)\.log,", output)
        assert len(names) == output.count(": train "), output
        jobs = [json.loads((self._jobs / f"{name}.json").read_text()) for name in names]
        return {bundle for job in jobs for bundle in job["bundles"]}

    @property
    def _jobs(self) -> Path:
        return self.root / "results" / "plan" / "jobs"

    def since(self, before: Mapping[str, Any]) -> list[str]:
        """The runs of the study that were put into the store since ``records()`` was ``before``."""
        names = self.names()
        return sorted(names[run] for run, file in self.records().items() if before.get(run) != file)

    def records(self) -> dict[str, tuple[int, int]]:
        """The runs in the store, each with which file its record is and when it was written."""
        files = {
            path.parent.name: path.stat() for path in self.root.glob("results/runs/*/run.json")
        }
        return {run: (file.st_ino, file.st_mtime_ns) for run, file in files.items()}

    def names(self, study: str = "small") -> dict[str, str]:
        """The planned runs: ``{id: "fedprox 0"}``."""
        return {
            run["run"]: f"{run['method']} {run['spec']['seed']}" for run in self.plan(study)["runs"]
        }

    def run(self, name: str) -> str:
        """The id of the run ``fedprox 0``."""
        [found] = [run for run, known in self.names().items() if known == name]
        return found

    def plan(self, study: str = "small") -> dict[str, Any]:
        path = self.root / "results" / "plan" / "studies" / f"{study}.json"
        return dict(json.loads(path.read_text()))

    def bundle(self, name: str) -> str:
        """The bundle that trains the run ``fedprox 0``."""
        run = self.run(name)
        [found] = [known["bundle"] for known in self.plan()["runs"] if known["run"] == run]
        return str(found)

    def log(self, name: str) -> Path:
        """The log of the job that trains the run ``fedprox 0``, of the last one that began."""
        files, bundle = self._jobs.glob("*.json"), self.bundle(name)
        jobs = [file.stem for file in files if bundle in json.loads(file.read_text())["bundles"]]
        logs = [self.root / "results" / "logs" / "train" / f"{job}.log" for job in jobs]
        return max(logs, key=lambda path: path.stat().st_mtime_ns if path.exists() else 0)

    def table(self) -> bytes:
        return (self.root / TABLE).read_bytes()

    def values(self) -> dict[str, pd.DataFrame]:
        """The rows of the table by method."""
        table = pd.read_parquet(self.root / TABLE)
        return {str(m): rows.reset_index(drop=True) for m, rows in table.groupby("method")}

    def runs(self) -> pd.DataFrame:
        """The table of runs."""
        return pd.read_parquet(self.root / "results" / "tables" / "small.runs.parquet")

    def states(self) -> dict[str, str]:
        """States in the table of runs: ``{"fedprox 0": "complete"}``."""
        runs = self.runs()
        names = runs["method"] + " " + runs["seed"].astype(str)
        return dict(zip(names, runs["state"], strict=True))

    def report(self) -> str:
        return (self.root / REPORT).read_text()

    def write(self, path: str, text: str) -> None:
        (self.root / path).write_text(text)

    def append(self, path: str, text: str) -> None:
        self.write(path, (self.root / path).read_text() + text)

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace a text that stands once in a file."""
        text = (self.root / path).read_text()
        assert text.count(old) == 1, f"{path} has {text.count(old)} times {old!r}"
        self.write(path, text.replace(old, new))

    def study(self, **changes: Any) -> None:
        """Write the study, with some of its keys changed."""
        text = yaml.safe_dump({**STUDY, **changes}, sort_keys=False)
        self.write("config/studies/small.yaml", text)

    def settings(self, **changes: Any) -> None:
        """Write config.yaml, with some of its keys changed."""
        self.write("config/config.yaml", yaml.safe_dump({**SETTINGS, **changes}))


class Real(Project):
    """A project whose processes are Pythons of their own, in one group as a terminal has them."""

    python = sys.executable


def create(root: Path) -> Project:
    """A project in which nothing has run yet."""
    root.mkdir(parents=True)
    for name in CODE:
        source = REPOSITORY / name
        if source.is_dir() and not source.is_symlink():
            copy_code(source, root / name)
        else:
            shutil.copy(source, root / name, follow_symlinks=False)
    (root / "config" / "studies").mkdir(parents=True)
    project = Project(root)
    project.study()
    project.settings()
    return project


def copy_code(source: Path, target: Path) -> None:
    """Copy a folder of code with what Python has compiled, which holds where times are kept."""
    skipped = shutil.ignore_patterns("*.pyc.*", ".snakemake")  # Some are being written.
    shutil.copytree(source, target, symlinks=True, ignore=skipped)


def copy(project: Project, root: Path) -> Project:
    """The same project at another place, times included."""
    shutil.copytree(project.root, root, symlinks=True)
    return Project(root)


def clone(project: Project, root: Path) -> Project:
    """A project as a clone and a pull bring it: code, config and results, file by file, now."""
    kept = [p for p in project.root.iterdir() if p.name not in (".snakemake", "data")]
    found = [p for top in kept for p in (top, *([] if top.is_symlink() else top.rglob("*")))]
    sources = [p for p in found if p.is_symlink() or p.is_file()]
    random.Random(0).shuffle(sources)
    for source in sources:
        target = root / source.relative_to(project.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target, follow_symlinks=False)
    return Project(root)


def fl(place: Project, *arguments: str, exit_status: int = 0, **environment: str) -> str:
    """The output of ``fedloom``."""
    done = subprocess.run(
        [place.python, "-m", "fl", *arguments],
        cwd=place.root,
        env={**ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == exit_status, done.stdout
    return done.stdout


def until(what: Callable[[], bool]) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + 600
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def apart(values: Mapping[str, pd.DataFrame], others: Mapping[str, pd.DataFrame]) -> list[str]:
    """The methods whose rows are not the same to the last bit, run ids included."""
    names = {*values, *others}
    return sorted(
        name
        for name in names
        if name not in values or name not in others or not values[name].equals(others[name])
    )
