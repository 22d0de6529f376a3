"""Training needs torch, numpy, pandas, pyarrow, yaml and safetensors, and nothing else."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import planning
import pytest
from planning import Planned

from fl.base import identity, registry
from fl.train import job

NEEDED = {"torch", "numpy", "pandas", "pyarrow", "yaml", "safetensors"}
ABSENT = {
    *("snakemake", "dvc", "cvxpy", "sklearn", "scipy", "matplotlib", "jinja2", "torchvision"),
    *("pytest", "hypothesis", "PIL", "tqdm", "jsonschema", "psutil"),
}

ASKED_FOR = {"fl/parts/kernel_weights.py": {"cvxpy"}}
"""Imported only where a config asks for it: ``solver: cvxpy``."""

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


def imports(path: Path) -> Iterator[str]:
    """The packages that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]


def test_the_code_of_training_imports_no_more() -> None:
    roots = [Path(str(job.__file__)), registry.ROOT / "cli.py"]
    for kind in ("method", "term", "alteration", "model", "partition scheme"):
        roots += [entry.file for entry in registry.entries(kind)]
    files = {name for root in roots[:1] + roots[2:] for name in identity.files(root)}
    files |= {"fl/cli/main.py", "fl/__main__.py"}
    files -= {
        "fl/pytorch/vision.py"
    }  # Imported when a model of torchvision's is built, and not before.
    assert {"fl/engine/engine.py", "fl/methods/fedavg.py", "fl/store/checkpoint.py"} <= files
    for name in files:
        found = set(imports(registry.ROOT.parent / name)) - ASKED_FOR.get(name, set())
        assert found <= NEEDED | {"fl"} | sys.stdlib_module_names, name


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment for Python in which the rest cannot be imported."""
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HIDE)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(planning.ROOT)])}


def test_a_bare_machine_trains_on_prepared_data(
    planned: Callable[..., Planned], bare: dict[str, str]
) -> None:
    study = planned(models=["cnn"], datasets=["digits"], seeds=[0, 1])
    study.change("fedavg", lambda b: [m["spec"]["training"].update(rounds=1) for m in b["runs"]])
    prepare(study)
    job = subprocess.run(
        [sys.executable, "-m", "fl", *study.arguments("fedavg")],
        cwd=study.root,
        env=bare,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert job.returncode == 0, job.stderr
    assert study.store().runs() == sorted(study.runs("fedavg"))


def prepare(study: Planned) -> None:
    """What the graph's rules before training make."""
    from fl.data import materials

    bundle = study.bundle("fedavg")
    spec = bundle["runs"][0]["spec"]
    data, results = Path(bundle["data"]), Path(bundle["results"])
    materials.partition(spec["partition"], spec["dataset"], data, results)


def test_what_is_hidden_cannot_be_imported(bare: dict[str, str]) -> None:
    for name in ("sklearn", "jinja2", "yaml"):
        job = subprocess.run(
            [sys.executable, "-c", f"import {name}"], env=bare, capture_output=True, text=True
        )
        assert (f"No module named '{name}'" in job.stderr) == (name in ABSENT)
