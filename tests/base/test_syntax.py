"""What is read of a file of code, and that what is kept of it is never believed of another one."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fl.base import syntax

CODE = """
from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fl.api import trees
from .losses import loss, weight

if TYPE_CHECKING:
    from fl.api.method import Method


def own(x):
    return loss(x) * weight + math.pi
"""
LABEL = "fl/parts/own.py"
IMPORTS = {
    ("__future__", "annotations"),
    ("math", ""),
    ("typing", "TYPE_CHECKING"),
    ("fl", "trees"),
    ("fl.api.losses", "loss"),
    ("fl.api.losses", "weight"),
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has read nothing."""
    monkeypatch.setattr(syntax, "_known", {})
    monkeypatch.setattr(syntax, "_used", set())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(CODE)
    return path


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files that were parsed."""
    found: list[str] = []
    parse = ast.parse

    def noting(content: bytes, filename: str) -> ast.Module:
        found.append(Path(filename).name)
        return parse(content, filename)

    monkeypatch.setattr(syntax.ast, "parse", noting)
    yield found


def test_imports_are_those_of_what_is_executed(file: Path):
    assert set(syntax.read(file, LABEL).imports) == IMPORTS


def test_newer_empty_fields_of_syntax_leave_the_hash():
    tree = ast.parse("def f(x):\n    return x\n")
    before = syntax.canonical(tree)
    tree.body[0].type_params = []
    tree.body[0]._fields = (*tree.body[0]._fields, "type_params")
    assert syntax.canonical(tree) == before


def again(folder: Path) -> None:
    """As a process that begins now and is told of a folder."""
    syntax._known.clear()
    syntax._used.clear()
    syntax.recall(folder)


def test_what_is_kept_is_not_parsed_again(file: Path, tmp_path: Path, parsed: list[str]):
    found = syntax.read(file, LABEL)
    syntax.keep(tmp_path)
    again(tmp_path)
    assert syntax.read(file, LABEL) == found
    assert parsed == ["own.py"]


def test_another_file_or_place_is_read_anew(file: Path, tmp_path: Path, parsed: list[str]):
    found = syntax.read(file, LABEL)
    syntax.keep(tmp_path)
    again(tmp_path)
    assert ("fl.terms.losses", "loss") in syntax.read(file, "fl/terms/own.py").imports
    file.write_text(CODE.replace("math.pi", "math.e"))
    assert syntax.read(file, LABEL).code != found.code
    assert parsed == ["own.py"] * 3


def damaged(content: bytes) -> bytes:
    kept = json.loads(content)
    [one] = kept["files"].values()
    one[0] = "0123456789abcdef"
    return json.dumps(kept).encode()


@pytest.mark.parametrize("spoil", [damaged, lambda content: content[:-9], lambda content: b"[]"])
def test_a_damaged_file_is_not_believed(spoil, file: Path, tmp_path: Path, parsed: list[str]):
    found = syntax.read(file, LABEL)
    syntax.keep(tmp_path)
    kept = tmp_path / syntax.FILE
    kept.write_bytes(spoil(kept.read_bytes()))
    again(tmp_path)
    assert syntax.read(file, LABEL) == found
    assert parsed == ["own.py"] * 2


def test_what_other_code_has_read_is_not_believed(
    file: Path, tmp_path: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch
):
    syntax.read(file, LABEL)
    syntax.keep(tmp_path)
    monkeypatch.setattr(syntax, "_reader", lambda: "another")
    again(tmp_path)
    syntax.read(file, LABEL)
    assert parsed == ["own.py"] * 2


def test_where_there_is_no_folder_nothing_is_written(file: Path, tmp_path: Path):
    syntax.read(file, LABEL)
    syntax.keep(tmp_path / "plan")
    assert not (tmp_path / "plan").exists()
