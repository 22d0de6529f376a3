"""What the authors of methods, terms, alterations and models import: ``from fl.api import Method``.

The list is `__init__.pyi`, where type checkers find it too. A name is imported when it is asked
for, so that what declares keys needs no torch.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

PLACES: dict[str, str] = {
    name.name: str(statement.module)
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(statement, ast.ImportFrom)
    for name in statement.names
}
"""By name, the module that has it."""

__all__ = list(PLACES)


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if PLACES[name] in ("fl.api", "fl.base", "fl.pytorch"):
        return importlib.import_module(f"{PLACES[name]}.{name}")
    return getattr(importlib.import_module(PLACES[name]), name)
