"""Names for authors of methods, terms, alterations and models: ``from fl.api import Method``.

`__init__.pyi` lists the names, also for type checkers. A name is imported at its first use, so that
a file which only declares config keys does not load torch.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

MODULE_BY_NAME: dict[str, str] = {
    name.name: str(statement.module)
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(statement, ast.ImportFrom)
    for name in statement.names
}
"""Module of each name."""

__all__ = list(MODULE_BY_NAME)

FORMER_NAMES = {"shared": "shared_model", "personal": "personal_model"}
"""Names that plugins may still use, and the present ones."""


def __getattr__(name: str) -> Any:
    name = FORMER_NAMES.get(name, name)
    if name not in MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if MODULE_BY_NAME[name] in ("fl.api", "fl.base", "fl.pytorch"):
        return importlib.import_module(f"{MODULE_BY_NAME[name]}.{name}")
    return getattr(importlib.import_module(MODULE_BY_NAME[name]), name)
