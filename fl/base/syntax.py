"""A file of code as Python understands it: its syntax as one hash, and what it imports.

To parse the code of one run takes a third of a second, in the plan and in each job again. What came
of it is kept beside the plan, by the bytes of each file; who is told of that place reads it there.
That file decides nothing and may be deleted.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fl.base.digest import digest
from fl.base.errors import FedloomError
from fl.base.files import parse_json, write_bytes

FILE = "syntax.json"
"""Its name beside the plan."""

DECLARED = frozenset({"published_splits"})
"""Attributes of classes that only checks of a config read, see `fl.data.Dataset`: no number follows
from them, and to state one trains nothing again.
"""


class Syntax(NamedTuple):
    """What counts of a file.

    Attributes:
        code: The hash of its syntax, without docstrings, comments and layout. It does not depend on
            the Python version.
        imports: Modules, each with what is imported from it, or with "" where it is imported whole.
            Imports for types alone are left out.
    """

    code: str
    imports: tuple[tuple[str, str], ...]


_known: dict[str, Syntax] = {}
_used: set[str] = set()


def read(path: Path, label: str) -> Syntax:
    """The syntax of a file.

    Args:
        label: Its path with that of its package, by which relative imports are understood.

    Raises:
        SyntaxError: If it is not Python.
    """
    content = path.read_bytes()
    key = hashlib.sha256(label.encode() + b"\0" + content).hexdigest()
    if key not in _known:
        tree = ast.parse(content, filename=str(path))
        _known[key] = Syntax(digest(canonical(tree)), tuple(sorted(set(imports(tree, label)))))
    _used.add(key)
    return _known[key]


def recall(folder: Path) -> None:
    """Use what is kept in the folder of a plan; nothing if other code wrote it or it is damaged."""
    try:
        found = parse_json((folder / FILE).read_bytes())
        if found["digest"] == _sealed(found["files"]):
            kept = {key: _syntax(*one) for key, one in found["files"].items()}
            _known.update(kept)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return


def keep(folder: Path) -> None:
    """Keep what this process has read, if the folder is there and may be written to."""
    files = {key: list(_known[key]) for key in sorted(_used)}
    content = json.dumps({"digest": _sealed(files), "files": files}).encode()
    with contextlib.suppress(OSError, FedloomError):
        path = folder / FILE
        if not path.exists() or path.read_bytes() != content:
            write_bytes(path, content)


def _syntax(code: str, imports: list[list[str]]) -> Syntax:
    return Syntax(code, tuple((module, name) for module, name in imports))


def _sealed(files: Mapping[str, Any]) -> str:
    return digest([_reader(), files])


@cache
def _reader() -> str:
    """A hash of the code that reads syntax: what other code has read may differ."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def imports(tree: ast.Module, label: str) -> Iterator[tuple[str, str]]:
    """What a file imports when it is executed, see `Syntax`; some more than once."""
    for node in _walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = _package(node, label)
            yield from ((package, alias.name) for alias in node.names)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """All syntax that is executed, in any order; imports for types alone are left out."""
    waiting = [node]
    while waiting:
        found = waiting.pop()
        if isinstance(found, ast.If) and is_for_types(found.test):
            waiting.extend(found.orelse)
        elif not isinstance(found, ast.expr):  # Of which none holds an import.
            yield found
            waiting.extend(ast.iter_child_nodes(found))


def is_for_types(test: ast.expr) -> bool:
    """Whether a condition is ``TYPE_CHECKING``."""
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _package(node: ast.ImportFrom, label: str) -> str:
    if not node.level:
        return node.module or ""
    parts = Path(label).parts[: -node.level]
    return ".".join([*parts, *filter(None, [node.module])])


def canonical(node: Any) -> Any:
    """Syntax as nested lists. Empty fields are left out: newer Pythons add new, empty ones."""
    if isinstance(node, ast.AST):
        body: list[Any] = [type(node).__name__]
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                value = [item for item in value if not _is_text(item) and not _declares(item)]
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


def _declares(node: Any) -> bool:
    """One of `DECLARED`: ``published_splits: ClassVar = ("test",)``."""
    target = node.target if isinstance(node, ast.AnnAssign) else None
    return isinstance(target, ast.Name) and target.id in DECLARED
