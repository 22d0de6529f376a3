"""Hashes: of values, for names of runs and data; of code, by its syntax.

The syntax of a file has no docstrings, comments and layout.
"""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path
from typing import Any


def digest(payload: Any) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a JSON-like value; keys may have any order."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hash_bytes(content: bytes) -> str:
    """Return the hash of a file's bytes, 16 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()[:16]


def hash_code(path: Path) -> str:
    """Return the hash of a file's syntax, which is the same in every version of Python.

    Raises:
        SyntaxError: If the file is not Python.
    """
    return digest(canonical(ast.parse(path.read_bytes(), filename=str(path))))


def canonical(node: Any) -> Any:
    """Return syntax as nested lists, without empty fields, which newer versions of Python add."""
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
    """Whether a statement is only a string, such as a docstring."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
