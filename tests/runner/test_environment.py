"""The last state of a clone whose code is certified."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fl.base.hashes import hash_bytes
from fl.plan import certification
from fl.runner import environment


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(certification, "uncertified_note", lambda: "core is not certified")
    (tmp_path / "fl").mkdir()
    environment.last_certified.cache_clear()
    yield tmp_path
    environment.last_certified.cache_clear()


def git(root: Path, *words: str) -> str:
    person = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    done = subprocess.run(["git", "-C", root, *person, *words], capture_output=True, check=True)
    return done.stdout.decode().strip()


def commit(root: Path, code: str, certified: str) -> str:
    """Commit a file, and as what it is certified."""
    (root / "fl/rng.py").write_text(code)
    content = {"files": {"fl/rng.py": [hash_bytes(certified.encode()), "0" * 16]}}
    (root / "fl/numbers.json").write_text(json.dumps(content))
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "a")
    return git(root, "rev-parse", "HEAD")


def test_the_last_state_whose_files_are_certified_is_named(clone: Path) -> None:
    git(clone, "init", "-q")
    commit(clone, "A = 1", "A = 1")
    good = commit(clone, "A = 2", "A = 2")
    commit(clone, "A = 3", "A = 4")
    found = environment.last_certified()
    assert found is not None and found[0] == good and len(found[1]) == len("2026-11-28")
    assert f"`git checkout {good[:9]}`" in environment.uncertified_note()


def test_without_a_certified_state_or_a_clone_none_is_named(clone: Path) -> None:
    assert environment.last_certified() is None
    git(clone, "init", "-q")
    commit(clone, "A = 1", "A = 2")
    environment.last_certified.cache_clear()
    assert environment.last_certified() is None
    assert (
        environment.uncertified_note()
        == "core is not certified. Try: `make golden`, which certifies it"
    )


def test_nothing_is_said_of_certified_code(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certification, "uncertified_note", lambda: "")
    assert environment.uncertified_note() == ""
