"""Captions of tables and figures are short; what else a careful reader needs is a note."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fl

MOST_WORDS = 40
FL = Path(fl.__file__).parent
FILES = sorted([*(FL / "report").glob("*.py"), *(FL / "analyses").glob("*.py")])


def captions(tree: ast.AST) -> list[tuple[int, str]]:
    """Line and text of each caption of a module; a value that is filled in counts as one word."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id == "caption":
                found.append((node.lineno, text_of(node.value)))
        if isinstance(node, ast.Call):
            found += [
                (node.lineno, text_of(keyword.value))
                for keyword in node.keywords
                if keyword.arg in ("caption", "figure")
            ]
    return found


def text_of(value: ast.expr) -> str:
    """A string's text, with ``x`` for each value that is filled in."""
    if isinstance(value, ast.Constant):
        return str(value.value)
    if isinstance(value, ast.JoinedStr):
        return "".join(text_of(part) for part in value.values)
    return "x"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_captions_are_short(file: Path) -> None:
    long = {
        line: len(text.split())
        for line, text in captions(ast.parse(file.read_text(encoding="utf-8")))
        if len(text.split()) > MOST_WORDS
    }
    assert long == {}


def test_a_long_caption_is_found() -> None:
    [(_, text)] = captions(ast.parse('caption = f"' + "word " * 41 + '{x}"'))
    assert len(text.split()) == MOST_WORDS + 2
