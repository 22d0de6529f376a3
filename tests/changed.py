"""Tests what a change touches, within about a minute: ``make test-fast``.

What is changed is what git says has become different since the merge base with ``main``, and what
is not committed. It prints what it chose and what it left out; the whole is ``make test``.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]  # As a program this file is found by its path, and fl is not.

from fl.base import identity  # noqa: E402

SLOW = ("tests/graph/", "tests/cluster/")
"""They run Snakemake, which takes minutes."""

KINDS = {
    "fl/methods": ("tests/contract",),
    "fl/terms": ("tests/contract",),
    "fl/models": ("tests/models/test_models.py",),
    "fl/data/datasets": ("tests/data",),
    "fl/data/schemes": ("tests/data",),
}
"""Folders with one thing a file, and where the tests are that have its name, often in their id."""

MOST = 2
"""Of the things of a kind that depend on a file, so many are tested."""


@dataclass
class Choice:
    """What to run, the most telling first, and what else the change may touch."""

    whole: dict[str, None] = field(default_factory=dict)
    """Test files that run as they are, in order."""
    by_name: dict[str, None] = field(default_factory=dict)
    """Test files of which those tests run that have one of `names`."""
    names: dict[str, None] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def arguments(self) -> list[str]:
        """What pytest is told; empty if there is nothing to test."""
        some = [file for file in self.by_name if file not in self.whole]
        if not some:
            return list(self.whole)
        others = " and ".join(f"not {Path(file).name}" for file in some)
        named = [form for name in self.names for form in {name, name.replace("-", "_")}]
        return [*self.whole, *some, "-k", " or ".join([f"({others})", *sorted(named)])]


def choose(changed: Iterable[str], root: Path = ROOT) -> Choice:
    """The tests of changed files, which are paths relative to the repository's ``root``."""
    choice = Choice()
    # Tests that were edited come first, because they were written for this change.
    for path in sorted(changed, key=lambda path: (not path.startswith("tests/"), path)):
        if path.startswith(SLOW) or path == "Snakefile" or path.startswith("workflow/"):
            choice.left_out.append(f"{path}: what runs Snakemake takes minutes")
        elif path.startswith("tests/"):
            _of_a_test(path, root, choice)
        elif path.startswith("fl/") and path.endswith(".py"):
            _of_code(path, root, choice)
        elif Path(path).suffix in (".md", ".csv", ".yaml"):
            choice.whole["tests/repository/test_docs.py"] = None
        else:
            choice.left_out.append(f"{path}: no test is known to be its own")
    return choice


def _of_a_test(path: str, root: Path, choice: Choice) -> None:
    if not path.endswith(".py"):
        choice.left_out.append(f"{path}: no test is known to be its own")
    elif Path(path).name.startswith("test_"):
        choice.whole[path] = None
    else:
        _add_importers(path, root, choice)


def _of_code(path: str, root: Path, choice: Choice) -> None:
    folder, stem = path.rpartition("/")[0], Path(path).stem
    if folder in KINDS and stem != "__init__":
        _add_named(folder, [stem], root, choice)
        choice.whole["tests/repository/test_docs.py"] = None
        return
    named = _tests_of(path, root)
    choice.whole.update(dict.fromkeys(named))
    if not named:
        _add_importers(path, root, choice)
    for kind in KINDS:
        users = dependents(path, kind, root)
        _add_named(kind, users[:MOST], root, choice)
        if users[MOST:]:
            left = ", ".join(users[MOST:])
            choice.left_out.append(f"{path}: of what is in {kind} and needs it, {left}")


def _add_named(folder: str, stems: Iterable[str], root: Path, choice: Choice) -> None:
    for stem in stems:
        name = stem.replace("_", "-")
        choice.names[name] = None
        for file in _tests(root):
            if file.startswith(KINDS[folder]) and _is_about(root / file, folder, name):
                choice.by_name[file] = None


def _is_about(file: Path, folder: str, name: str) -> bool:
    """Whether a test file names a thing, or takes all things of its kind from the registry."""
    text, kind = file.read_text(encoding="utf-8"), _kind(folder)
    either = f"{re.escape(name)}|{re.escape(name.replace('-', '_'))}"
    all_of_them = rf'registry\.(names|entries)\("{kind}"\)'
    return bool(re.search(rf"(?<![a-z])({either})(?![a-z])|{all_of_them}", text))


def _kind(folder: str) -> str:
    from fl.base.registry import FOLDERS

    return next(kind for kind, inner in FOLDERS.items() if f"fl/{inner}" == folder)


def dependents(path: str, folder: str, root: Path = ROOT) -> list[str]:
    """The modules in a folder of `KINDS` whose numbers hang on ``path``, the two ends first.

    The first needs the fewest files and the second the most: the simplest and the most composed.
    Every method is trained by the core, which it does not import.
    """
    core = folder == "fl/methods" and path in _needs(identity.CORE)
    found = []
    for file in sorted((root / folder).glob("[a-z]*.py")):
        needed = _needs(file)
        if core or path in needed:
            found.append((len(needed), file.stem))
    ordered = [stem for _, stem in sorted(found)]
    return [*ordered[:1], *ordered[:0:-1]]


@cache
def _needs(file: Path) -> dict[str, str]:
    return identity.files(file)


def _tests_of(path: str, root: Path) -> list[str]:
    """Test files named after a module or, for want of those, after its package."""
    stem, package = Path(path).stem, Path(path).parent.name
    for names in ([stem], [package] if package != "fl" else []):
        found = [f for f in _tests(root) if any(_is_named(f, name) for name in names)]
        if found:
            return found
    return []


def _is_named(file: str, name: str) -> bool:
    return bool(re.fullmatch(rf"test_{re.escape(name)}(_\w+)?\.py", Path(file).name))


def _add_importers(path: str, root: Path, choice: Choice) -> None:
    users = _importers(Path(path).stem, root)
    choice.whole.update(dict.fromkeys(users[:MOST]))
    if not users:
        choice.left_out.append(f"{path}: no test is known to be its own")
    if users[MOST:]:
        choice.left_out.append(f"{path}: of the test files that import it, {len(users[MOST:])}")


def _importers(stem: str, root: Path) -> list[str]:
    """The test files that import a module of that name, the smallest first."""
    imported = re.compile(
        rf"^(from [\w.]*\b{stem} import|import [\w.]*\b{stem}\b|from [\w.]+ import .*\b{stem}\b)",
        re.M,
    )
    found = [f for f in _tests(root) if imported.search((root / f).read_text(encoding="utf-8"))]
    return sorted(found, key=lambda file: (root / file).stat().st_size)


def _tests(root: Path) -> list[str]:
    files = (p.relative_to(root).as_posix() for p in sorted((root / "tests").rglob("test_*.py")))
    return [file for file in files if not file.startswith(SLOW)]


def changed_since(base: str, root: Path = ROOT) -> list[str]:
    """Files that are there and differ from the merge base with ``base``, untracked ones included.

    Where there is no such branch, what is not committed.
    """
    fork = next(filter(None, (_fork(name, root) for name in (base, f"origin/{base}"))), "HEAD")
    listed = [
        *_git(root, "diff", "--name-only", "--diff-filter=d", fork),
        *_git(root, "ls-files", "--others", "--exclude-standard"),
    ]
    return sorted(set(listed))


def _fork(base: str, root: Path) -> str:
    command = ["git", "merge-base", base, "HEAD"]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def _git(root: Path, *arguments: str) -> Iterator[str]:
    command = ["git", "-c", "core.quotePath=false", *arguments]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    yield from found.stdout.splitlines()


class Budget:
    """Starts no more tests when the time is over, and says how many it did not start."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.ends, self.left = seconds, time.monotonic() + seconds, 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """True, which is to say done, for a test that comes too late."""
        if time.monotonic() < self.ends:
            return None
        self.left += 1
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The last word, so that a part is not taken for the whole."""
        if self.left:
            terminalreporter.write_line(
                f"left out: {self.left} chosen tests that {self.seconds:.0f} s had no room for"
            )


def main() -> int:
    """Choose, say so, and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", default="main", help="the branch that changes are seen against")
    parser.add_argument("--seconds", type=float, default=45, help="no test starts after that")
    given = parser.parse_args()
    budget = Budget(given.seconds)
    choice = choose(changed_since(given.base))
    print("left out:", *(choice.left_out or ["nothing that is known"]), sep="\n  ")
    arguments = choice.arguments()
    print("chosen:", *(arguments or ["no test"]), sep="\n  ", flush=True)
    if not arguments:
        return 0
    status = pytest.main(["--quiet", *arguments], plugins=[budget])
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else int(status)


if __name__ == "__main__":
    sys.exit(main())
