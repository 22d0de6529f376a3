"""The house: imports point one way, from room to room and from file to file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from fl.base import identity, syntax


def arrows(types: bool) -> Iterator[tuple[Path, Path]]:
    """Who imports whom in ``fl``; types: also those that import names for their types alone."""
    for path in identity.ROOT.rglob("*.py"):
        tree = ast.parse(path.read_bytes())
        if types:
            for node in ast.walk(tree):
                if isinstance(node, ast.If) and syntax.is_for_types(node.test):
                    node.test = ast.Constant(True)
        named = syntax.imports(tree, identity._label(path))
        for other in {file for one in named for file in identity._imported(*one)}:
            if other != path:
                yield path.relative_to(identity.ROOT), other.relative_to(identity.ROOT)


def check(pairs: Iterator[tuple[str, str]]) -> None:
    graph: dict[str, set[str]] = {}
    for above, below in pairs:
        graph.setdefault(above, set()).add(below)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"imports go round in a circle: {' <- '.join(error.args[1])}")


def test_no_files_import_each_other() -> None:
    check((str(above), str(below)) for above, below in arrows(types=True))


def test_no_rooms_import_each_other() -> None:
    def room(path: Path) -> str:
        # Parts are a shelf, not a room: some are what the recipe uses, others are made by it.
        return str(path) if path.parts[0] == "parts" else path.parts[0]

    pairs = [(room(above), room(below)) for above, below in arrows(types=False)]
    assert ("cli", "train") in pairs, "the check has something to look at"
    check((above, below) for above, below in pairs if above != below)
