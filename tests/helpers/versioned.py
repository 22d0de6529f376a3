"""The small project under git and DVC."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import project
from project import REPOSITORY, Project

FILES = (
    "dvc.yaml",
    ".dvcignore",
    ".gitignore",
    ".dvc/config",
    ".dvc/.gitignore",
    ".dvc/plots/rounds.json",
)
PEOPLE = {
    f"GIT_{role}_{key}": text
    for role in ("AUTHOR", "COMMITTER")
    for key, text in (("NAME", "somebody"), ("EMAIL", "somebody@example.org"))
}


@dataclass(frozen=True)
class Versioned(Project):
    """A project with `git` and `dvc` commands."""

    def environment(self) -> dict[str, str]:
        """This Python first on the path; DVC's caches are beside the project, git has no config."""
        programs = self.root.parent / "bin"
        if not programs.exists():
            programs.mkdir()
            (programs / "python").write_text(f'#!/bin/sh\nexec "{self.python}" "$@"\n')
            (programs / "python").chmod(0o755)
        return {
            **project.ENVIRONMENT,
            **PEOPLE,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.root.parent),
            "DVC_SITE_CACHE_DIR": str(self.root.parent / "site"),
            "DVC_GLOBAL_CONFIG_DIR": str(self.root.parent / "global"),
            "DVC_NO_ANALYTICS": "1",
        }

    def git(self, *arguments: str) -> str:
        return self._said(["git", *arguments], 0)

    def dvc(self, *arguments: str, exit_status: int = 0, **environment: str) -> str:
        return self._said([self.python, "-m", "dvc", *arguments], exit_status, **environment)

    def commit(self, message: str) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)

    def repro(self) -> list[str]:
        """The runs that a `dvc repro` trained, ``fedprox 0`` with their seed."""
        return self.trained_by("repro")

    def trained_by(self, *arguments: str) -> list[str]:
        """The runs that a `dvc` command trained: those that neither store nor archive had."""
        folders = [self.root / "results" / name for name in ("runs", "archive")]
        before = {path.parent.name for folder in folders for path in folder.glob("*/run.json")}
        output = self.dvc(*arguments)
        names = self.names()
        found = sorted(names[run] for run in self.records() if run not in before)
        assert self.started(output) == {self.bundle(name) for name in found}, output
        return found

    def clone(self, root: Path) -> Versioned:
        """A clone by git, which knows the remotes and has no results."""
        root.parent.mkdir(parents=True, exist_ok=True)
        self.git("clone", "--quiet", ".", str(root))
        return Versioned(root)

    def _said(self, command: list[str], exit_status: int, **environment: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.root,
            env={**self.environment(), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert done.returncode == exit_status, done.stdout
        return done.stdout


def create(finished: Project, root: Path) -> Versioned:
    """The finished project under git and DVC; nothing is committed yet."""
    made = Versioned(project.copy(finished, root).root)
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, root / name)
    shutil.copy(REPOSITORY / "results/.gitignore", root / "results/.gitignore")
    made.git("init", "--quiet", "--initial-branch", "main")
    return made
