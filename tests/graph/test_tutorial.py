"""`docs/guide/tutorial.md` does what it says, command by command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import project
import pytest
from project import ENVIRONMENT, REPOSITORY, Project

pytestmark = pytest.mark.graph

BLOCKS = re.findall(
    r"^```sh\n(.*?)^```$",
    (REPOSITORY / "docs/guide/tutorial.md").read_text(),
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Clone:
    """A clone of the repository in which the tutorial is followed; ``said`` are its answers."""

    project: Project
    programs: Path
    said: list[str] = field(default_factory=list)

    def follow(self) -> str:
        """Run the next block as a reader would; what it says."""
        # A pytest inside of one has a folder of its own: others' are not its to clean up.
        own = {"PYTEST_ADDOPTS": f"--basetemp={self.programs.with_name('pytest')}"}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", BLOCKS[len(self.said)]],
            cwd=self.project.root,
            env={**ENVIRONMENT, **own, "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout
        self.said.append(done.stdout)
        return done.stdout


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    """The repository with its own config, and the programs of this environment."""
    root = tmp_path / "clone"
    made = project.create(root)
    shutil.rmtree(root / "config")
    for name in ("config", "tests"):
        shutil.copytree(
            REPOSITORY / name, root / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(REPOSITORY / "pyproject.toml", root)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, module in (("python", ""), ("snakemake", "-m snakemake "), ("fedloom", "-m fl ")):
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec "{made.python}" {module}"$@"\n')
        path.chmod(0o755)
    return Clone(made, programs)


def test_the_tutorial_does_what_it_says(clone: Clone) -> None:
    new, use, study, run, edit, *_ = range(len(BLOCKS))
    made = clone.project

    said = clone.follow()
    assert "wrote mylab/methods/anchor.py" in said, new
    assert (made.root / "mylab/methods/anchor.py").is_file()

    assert re.match(r"anchor +Anchor: ", clone.follow()), use

    said = clone.follow()
    assert "0 of    2 runs stored" in said, study
    assert re.search(r"\b8 runs\b.*\b4 bundles\b", said), said

    said = clone.follow()
    assert 1 <= said.count(": train ") <= 4, run
    assert (made.root / "results/report/anchor.html").is_file()
    for title in ("FedAvg", "FedAvg-FT", "Anchor"):
        assert title in said
    before = made.records()
    names = made.names("anchor")
    assert len(before) == len(names) == 8
    own = ["anchor 0", "anchor 0", "anchor 1", "anchor 1"]

    clone.follow()
    after = made.records()
    trained = [made.names("anchor")[run] for run in after if run not in before]
    assert sorted(trained) == own, edit
    assert {run: after[run] for run in before} == before
    gone = [name for run, name in names.items() if run not in made.names("anchor")]
    assert sorted(gone) == own

    said = clone.follow()
    assert re.search(r"^=+ [2-9]\d passed, \d+ deselected\b", said, re.MULTILINE), said

    said = clone.follow()
    assert re.search(r"^=+ \d+ passed, \d+ deselected\b", said, re.MULTILINE), said
    assert re.search(r"^  My APFL +[\d.]+", said, re.MULTILINE), said
    trained = [made.names("anchor")[run] for run in made.records() if run not in after]
    assert sorted(trained) == ["my-apfl 0", "my-apfl 0", "my-apfl 1", "my-apfl 1"]

    said = clone.follow()
    assert "digits / dirichlet(clients=6, alpha=0.3) / mobile" in said
    assert re.search(r"\b12 runs\b.*\b12 to train\b", said), said
    assert len(clone.said) == len(BLOCKS)
