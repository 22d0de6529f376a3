"""Training needs torch, numpy, pandas, pyarrow, yaml and safetensors, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import planning
from planning import Planned

from fl.data import partitioning

ABSENT = {
    *("snakemake", "dvc", "cvxpy", "sklearn", "scipy", "matplotlib", "jinja2", "torchvision"),
    *("pytest", "hypothesis", "PIL", "tqdm", "jsonschema", "psutil"),
}

HIDE = f"""
import importlib.machinery, sys

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in {ABSENT!r}:
            return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
"""
"""A ``sitecustomize`` that makes packages as good as not installed."""

IMPORTS = """
from fl.base import registry
for kind in ("method", "term", "alteration", "partition scheme", "model"):
    registry.components(kind)
"""
"""Everything that a spec of a run can name, but for readers of raw files."""


def test_a_bare_machine_imports_the_library_and_trains_on_prepared_data(
    planned: Callable[..., Planned], tmp_path: Path
) -> None:
    study = planned(models=["cnn"], datasets=["digits"], seeds=[0, 1])
    study.change("fedavg", lambda b: [m["spec"]["training"].update(rounds=1) for m in b["runs"]])
    bundle = study.bundle("fedavg")
    spec = bundle["runs"][0]["spec"]
    partitioning.make_partition(
        spec["partition"], spec["dataset"], Path(bundle["data"]), Path(bundle["results"])
    )
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "sitecustomize.py").write_text(HIDE)
    path = os.pathsep.join([str(bare), str(planning.ROOT)])

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=study.root,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=600,
        )

    assert "No module named 'sklearn'" in python("-c", "import sklearn").stderr
    solve = "from fl.blocks.kernel_weights import _solve_by_cvxpy as solve"
    asked = f"import numpy as np; {solve}; solve(np.eye(1), 1)"
    assert "needs cvxpy, which is not installed. Try: make extras" in python("-c", asked).stderr
    done = python("-c", IMPORTS)
    assert done.returncode == 0, done.stderr
    done = python("-m", "fl", *study.arguments("fedavg"))
    assert done.returncode == 0, done.stderr
    assert study.store().runs() == sorted(study.runs("fedavg"))
