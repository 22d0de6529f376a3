"""Count files and lines of code by part of the project; write them into docs/guide/architecture.md.

Docstrings, comments and blank lines do not count. Run ``python -m tools.lines`` in a clone.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "guide" / "architecture.md"
BEGIN, END = "<!-- lines of code: python -m tools.lines -->", "<!-- end -->"

CORE = ("base", "pytorch", "api", "engine", "data", "plan", "runner", "store")
"""Folders of ``fl`` that turn a config into trained runs in a store."""

FRONT_ENDS = ("cli", "notebook", "report", "workflow")
"""Folders of ``fl`` that start runs and read them; the core imports none of them."""

LIBRARY = (
    *("methods", "blocks", "models", "terms", "uploads", "participation", "analyses"),
    *("data/datasets", "data/readers", "data/schemes", "api/tasks"),
)
"""Folders of ``fl`` with one file per component, and the building blocks of components."""

NO_CODE = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
)
"""Types of tokens that make no line of code."""


def count_lines(path: Path) -> int:
    """Return the number of lines of a Python file that hold code."""
    text = path.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and is_text(node.value):  # A docstring.
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def is_text(node: ast.expr) -> bool:
    """Whether an expression is a string."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def total(paths: Iterable[Path]) -> int:
    """Return the lines of code of several files."""
    return sum(map(count_lines, paths))


def python_files(folders: Iterable[str]) -> set[Path]:
    """Return the Python files below some folders of ``fl``."""
    return {path for folder in folders for path in (ROOT / "fl" / folder).rglob("*.py")}


def names(folders: Iterable[str]) -> str:
    """Return folders of ``fl`` as Markdown."""
    return ", ".join(f"`fl/{folder}`" for folder in folders)


def table() -> str:
    """Return the Markdown table of files and lines of code."""
    library = python_files(LIBRARY)
    rows: dict[str, Collection[Path]] = {
        f"core: {names(CORE)}": python_files(CORE) - library,
        f"front ends: {names(FRONT_ENDS)}": python_files(FRONT_ENDS),
        "library: methods, models, terms, upload filters, data sets, analyses": library,
        "tests": [*(ROOT / "tests").rglob("*.py")],
        "`tools/`, `bench/`": [*(ROOT / "tools").rglob("*.py"), *(ROOT / "bench").rglob("*.py")],
    }
    lines = [f"| {name} | {len(paths)} | {total(paths):,} |" for name, paths in rows.items()]
    return "\n".join(["| | files | lines |", "|---|---:|---:|", *lines])


def page() -> str:
    """Return the text of docs/guide/architecture.md with the table of today."""
    text = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.DOTALL)
    return pattern.sub(lambda _: f"{BEGIN}\n{table()}\n{END}", text)


if __name__ == "__main__":
    argparse.ArgumentParser("python -m tools.lines", description=__doc__).parse_args()
    PAGE.write_text(page(), encoding="utf-8")
