"""Runs the tests of the files that differ from a branch: ``make test-fast``.

A module ``fl/store/lease.py`` has the files ``tests/*/test_lease*.py``; a method, a model or
another library file has the tests whose name has its name. Files without either are listed, and
``make test`` runs everything.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = {
    "methods": ("contract", "methods"),
    "terms": ("contract", "terms"),
    "alterations": ("contract", "terms"),
    "filters": ("contract", "uploads"),
    "aggregations": ("contract", "uploads"),
    "devices": ("participation",),
    "selections": ("contract", "participation"),
    "servers": ("contract", "participation"),
    "models": ("models",),
    "datasets": ("data",),
    "schemes": ("data",),
}
"""By the folder of library files, those of the tests which are made for each of them."""


def arguments(changed: Iterable[str]) -> list[list[str]]:
    """What pytest is called with, once for files of tests and once for each library file."""
    files, calls = set(), []
    for path in map(Path, changed):
        named = sorted(ROOT.glob(f"tests/*/test_{path.stem.removeprefix('test_')}*.py"))
        if path.suffix == ".py" and path.parent.name in LIBRARY:
            name = path.stem.replace("_", "-")
            folders = [f"tests/{folder}" for folder in LIBRARY[path.parent.name]]
            calls.append([*folders, "-k", f"{name} or {path.stem}"])
        elif path.suffix == ".py" and named:
            files.update(str(file.relative_to(ROOT)) for file in named)
        else:
            print(f"no tests are named after {path}")
    return [*([sorted(files)] if files else []), *calls]


def main() -> int:
    """Run them; the exit status is pytest's worst one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", default="main", help="the branch that files differ from")
    base = parser.parse_args().base
    listed = [
        *("git", "diff", "--name-only", "--diff-filter=d", "--merge-base", base),
        *("--", "fl", "tests", "workflow", "bench"),
    ]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    statuses = [pytest.main(["-q", *call]) for call in arguments(done.stdout.splitlines())]
    return max((int(s) for s in statuses if s != pytest.ExitCode.NO_TESTS_COLLECTED), default=0)


if __name__ == "__main__":
    sys.exit(main())
