"""The house: imports point down, from room to room, and in no circle, from file to file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tools import lines

ROOT = Path(__file__).parents[2]

FLOORS = (
    {"base"},
    {"pytorch"},
    {"api"},
    {"data", "blocks"},
    {"engine", "methods", "models", "store", "terms", "uploads", "participation"},
    {"analyses", "plan"},
    {"report", "runner"},
    {"workflow"},
    {"notebook"},
    {"cli"},
    {"__main__", "bench", "tools"},
)
"""The rooms of every floor, the lowest first; docs/guide/architecture.md has the same picture."""

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for folder in ("fl", "bench", "tools")
    for path in (ROOT / folder).rglob("*.py")
}


def file(module: str) -> Path:
    stem = ROOT.joinpath(*module.split("."))
    return stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")


def imports(module: str) -> Iterator[str]:
    """The modules of ours that a module imports, those for types alone included."""
    for node in ast.walk(ast.parse(file(module).read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES
            yield from inner or {node.module}


def room(module: str) -> str:
    first, *rest = module.split(".")
    return rest[0] if first == "fl" and rest else first


def test_every_import_points_to_a_lower_floor() -> None:
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    rooms = {room(module) for module in MODULES} - {"fl"}
    assert rooms == set(floor), "a room without a floor, or a floor without its room"
    for module in sorted(MODULES - {"fl"}):
        for other in set(imports(module)) - {"fl"}:
            if room(module) != room(other):
                assert floor[room(other)] < floor[room(module)], f"{module} imports {other}"


def part(module: str) -> str:
    """The row of a module in the table of sizes; empty without one. Library folders come first."""
    path = file(module).relative_to(ROOT / "fl").as_posix()
    rows = {"library": lines.LIBRARY, "core": lines.CORE}
    rows |= {"front ends": lines.FRONT_ENDS}
    for row, folders in rows.items():
        if path.startswith(tuple(f"{folder}/" for folder in folders)):
            return row
    return ""


ALLOWED = {
    "core": {"core"},
    "library": {"core", "library"},
    "front ends": {"core", "library", "front ends"},
}
"""The parts from which a part imports. The core reaches components through the registry."""

NAMED_COMPONENTS = {
    "fl.api.tasks.classification": "the task of data sets that name none",
    "fl.data.readers.flbench": "a format of the user's own partition, which is no component",
}
"""Files or folders of the library that the core may import by name."""


def test_the_core_imports_neither_components_nor_front_ends() -> None:
    package = {module for module in MODULES if module.split(".")[0] == "fl"} - {"fl", "fl.__main__"}
    for module in sorted(package):
        assert part(module), f"{module} is in no row of tools/lines.py"
        for other in set(imports(module)) - {"fl"}:
            is_named = part(module) == "core" and other.startswith(tuple(NAMED_COMPONENTS))
            assert is_named or part(other) in ALLOWED[part(module)], (
                f"{module} imports {other}; try: the registry, or another room"
            )


COMPONENTS = ("methods", "models", "terms", "uploads", "participation", "data")
"""The rooms of what a job of training finds by name."""


def test_training_imports_neither_reports_nor_notebooks_nor_the_workflow() -> None:
    reached = set[str]()
    components = {module for module in MODULES if room(module) in COMPONENTS}
    waiting = ["fl.runner.job", *sorted(components)]
    while waiting:
        module = waiting.pop()
        if module not in reached and module != "fl":
            reached.add(module)
            waiting += imports(module)
    assert "fl.runner.costs" in reached, "the test follows imports"
    assert not {room(module) for module in reached} & {"report", "notebook", "workflow", "cli"}


def test_nothing_is_keyed_by_its_address() -> None:
    """An address in memory differs from process to process, and so would what is sorted by it."""
    calls = [
        f"{module}:{node.lineno}"
        for module in sorted(MODULES)
        if module.startswith("fl.")
        for node in ast.walk(ast.parse(file(module).read_bytes()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "id"
    ]
    assert not calls, calls


def test_no_test_imports_another() -> None:
    """What several files of tests need is in tests/helpers."""
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            parts = {part for name in names for part in name.split(".")}
            is_test = any(part.startswith("test_") or part == "conftest" for part in parts)
            assert not is_test, f"{path.relative_to(ROOT)} imports {names}"


def test_no_files_import_each_other() -> None:
    graph = {module: set(imports(module)) - {module} for module in MODULES}
    assert "fl.engine.simulation" in graph["fl.engine.assembly"], "the test reads imports"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"imports go round in a circle: {' <- '.join(error.args[1])}")
