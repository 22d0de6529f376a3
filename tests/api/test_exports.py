"""What authors import: one module, and few names of it."""

from __future__ import annotations

import ast
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


def test_methods_import_fl_api_and_blocks_alone() -> None:
    modules = {module for path in METHODS for module in imported(path)}
    assert not [name for name in modules if name != "fl.api" and not name.startswith("fl.blocks")]


def test_plugins_may_use_former_names() -> None:
    assert fl.api.shared is fl.api.shared_model
    assert fl.api.personal is fl.api.personal_model


def test_declare_alone_makes_a_dataclass() -> None:
    with pytest.raises(FedloomError, match="Mine: has both @declare and @dataclass"):

        @fl.api.declare("global")
        @dataclass(frozen=True)
        class Mine:
            strength: float = 0.1
