"""A project whose Snakemake submits to a Slurm."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import preloaded
from daemons import Job, Slurm
from project import ENVIRONMENT, Project

from fl.store.store import Store

SOON = (
    *("--profile", "slurm"),
    *("--slurm-init-seconds-before-status-checks", "2", "--seconds-between-status-checks", "2"),
)
"""The profile, on a Slurm that is looked at more often than a real one."""


@dataclass(frozen=True)
class Clustered(Project):
    """A project whose Snakemake submits to a Slurm; `said` is what it says."""

    cluster: Slurm
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def submit(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """A Snakemake that is on its way, and writes to the file ``said``."""
        with (self.root / "said").open("a") as said:
            process = subprocess.Popen(
                [self.python, "-m", "snakemake", *SOON, *arguments],
                cwd=self.root,
                env={**ENVIRONMENT, **self.cluster.environment, **environment},
                stdout=said,
                stderr=said,
                text=True,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    @property
    def said(self) -> str:
        return (self.root / "said").read_text()

    def end(self, process: subprocess.Popen[str], exit_status: int = 0, within: float = 900) -> str:
        """The output of Snakemake, after it has ended as expected."""
        process.wait(within)
        assert process.returncode == exit_status, self.said
        return self.said

    def jobs(self, method: str) -> list[Job]:
        """The jobs of Slurm that train a method, oldest first."""
        names = {job["job"] for job in self.planned_jobs() if self.bundle(method) in job["bundles"]}
        return [job for job in self.cluster.jobs(self.root) if job.name in names]

    def planned_jobs(self) -> list[dict[str, Any]]:
        files = (self.root / "results" / "plan" / "jobs").glob("*.json")
        return [json.loads(path.read_text()) for path in files]

    def rounds(self, name: str) -> int:
        """The newest checkpoint of the run ``slow 0``; 0 if there is none."""
        if not (self.root / "results" / "plan" / "plan.json").exists():
            return 0
        folder = self.root / "results" / "runs" / f"{self.run(name)}.partial" / "checkpoint"
        found = [int(path.name.partition("-")[2]) for path in folder.glob("round-*[0-9]")]
        return max(found, default=0)

    def ended(self, name: str) -> str:
        """The end of the last attempt at the run ``slow 0``; empty if it has not ended."""
        found = Store(self.root / "results" / "runs").attempts(self.run(name))
        return found[-1].ended if found else ""

    def until(self, what: Callable[[], Any], within: float = 600) -> None:
        """Wait until something is so."""
        end = time.monotonic() + within
        while not what():
            assert time.monotonic() < end, self.said
            time.sleep(0.2)

    def undisturbed(self, name: str) -> bytes:
        """The metrics that a run has where nothing comes in between: trained here, at once."""
        store = self.root / "undisturbed"
        spec = self.root / "results" / "plan" / "bundles" / f"{self.bundle(name)}.json"
        subprocess.run(
            [preloaded.python(), "-m", "fl", "train", str(spec), "--store", str(store)],
            cwd=self.root,
            env=ENVIRONMENT,
            check=True,
            capture_output=True,
            timeout=600,
        )
        return (store / self.run(name) / "metrics.parquet").read_bytes()

    def metrics(self, name: str) -> bytes:
        return (self.root / "results" / "runs" / self.run(name) / "metrics.parquet").read_bytes()

    def told(self, name: str) -> str:
        """The log of the last job of a run; empty while Snakemake puts a new one in place."""
        try:
            return self.log(name).read_text()
        except FileNotFoundError:
            return ""

    def resumed(self, name: str) -> int:
        """The round after which the last job of a run went on."""
        lines = [line for line in self.told(name).splitlines() if "resumed" in line]
        assert lines, self.told(name)
        [(location, number)] = re.findall(r"resumed (after|in) round (\d+)", lines[-1])
        return int(number) - (location == "in")


class RealClustered(Clustered):
    """Its processes are Pythons of their own, for Slurm to signal and to measure."""

    python = sys.executable
