"""What authors import: one module, and few names of it."""

from __future__ import annotations

import ast
import statistics
from dataclasses import dataclass
from pathlib import Path

import pytest

import fl.api
from fl.base.errors import FedloomError

METHODS = [path for path in Path("fl/methods").glob("*.py") if path.stem != "__init__"]


def imported(path: Path) -> dict[str, list[str]]:
    """By module of ``fl``, the names that a file imports of it."""
    statements = ast.walk(ast.parse(path.read_text()))
    imports = [one for one in statements if isinstance(one, ast.ImportFrom)]
    ours = [one for one in imports if str(one.module).startswith("fl.")]
    return {str(one.module): [name.name for name in one.names] for one in ours}


def test_every_name_is_there() -> None:
    assert all(getattr(fl.api, name) is not None for name in fl.api.__all__)


def test_methods_import_fl_api_and_parts_alone_and_mostly_few_names() -> None:
    by_method = [imported(path) for path in METHODS]
    modules = {module for names in by_method for module in names}
    assert not [name for name in modules if name != "fl.api" and not name.startswith("fl.blocks")]
    assert statistics.median(len(names["fl.api"]) for names in by_method) <= 12


def test_declare_alone_makes_a_dataclass() -> None:
    with pytest.raises(FedloomError, match="Mine: has both @declare and @dataclass"):

        @fl.api.declare("global")
        @dataclass(frozen=True)
        class Mine:
            strength: float = 0.1
