"""A file of code as one hash of its syntax, without docstrings, comments and layout."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path
from typing import Any

from fl.base.digest import digest


def of_bytes(content: bytes) -> str:
    """A hash of a file as it is, 16 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()[:16]


def of_code(path: Path) -> str:
    """A hash of a file's syntax, the same for every Python version.

    Raises:
        SyntaxError: If it is not Python.
    """
    return digest(canonical(ast.parse(path.read_bytes(), filename=str(path))))


def canonical(node: Any) -> Any:
    """Syntax as nested lists. Empty fields are left out: newer Pythons add new, empty ones."""
    if isinstance(node, ast.AST):
        body: list[Any] = [type(node).__name__]
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                value = [item for item in value if not _is_text(item)]
            if value not in (None, []) and name not in ("kind", "type_comment"):
                body.append([name, canonical(value)])
        return body
    if isinstance(node, list):
        return [canonical(item) for item in node]
    return [type(node).__name__, repr(node)]


def _is_text(node: Any) -> bool:
    """A string that stands alone: the docstring of a module, class, function or name."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
