"""Hashes: of values, for names of runs and data; of code, by its syntax; of the user's own files.

The syntax of a file has no docstrings, comments and layout, and that of Fedloom's own code no type
hints and texts of errors either (`numeric_syntax`). A published file is identified by its checksum,
a user's file by its content, so that results computed from another content get another name. These
hashes are cached until the files change.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fl.base.errors import DataError, wrap_read_errors
from fl.base.files import is_folder, sha256, write_json

CACHE_FILE = "contents.json"
SETTLING_SECONDS = 2.0
"""A hash is cached if the last change is older: a file system may not show two quick changes."""


def digest(payload: Any) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a JSON-like value; keys may have any order."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hash_bytes(content: bytes) -> str:
    """Return the hash of a file's bytes, 16 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()[:16]


def hash_code(path: Path, is_own: bool = False) -> str:
    """Return the hash of a file's syntax, which is the same in every version of Python.

    Args:
        path: The file.
        is_own: Whether only the `numeric_syntax` counts, as in Fedloom's own code. Runs of plugins
            have no other name than a hash, so that theirs stays as it is.

    Raises:
        SyntaxError: If the file is not Python.
    """
    tree = ast.parse(path.read_bytes(), filename=str(path))
    return digest(canonical(numeric_syntax(tree) if is_own else tree))


LOGGERS = {"log", "logger"}
"""Names of loggers in Fedloom's own code."""

TYPE_MODULES = {"typing", "collections.abc"}
"""Modules from which an import has no effect but its names."""


def numeric_syntax(tree: ast.Module) -> ast.Module:
    """Return the syntax of a file without what cannot decide a number; ``tree`` is changed.

    Left out are the texts in ``raise`` statements and in messages to a log, and where annotations
    are not evaluated (``from __future__ import annotations``), those of functions and of variables
    in functions, blocks ``if TYPE_CHECKING``, and imports of types that nothing else uses.

    Annotations that code may read stay: those of classes, which are the fields of data classes, of
    parameters with a name only, which are keys, and of functions with a decorator.
    """
    has_lazy_annotations = any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and any(alias.name == "annotations" for alias in node.names)
        for node in tree.body
    )
    without: ast.Module = _WithoutTexts().visit(tree)
    if has_lazy_annotations:
        without = _WithoutAnnotations().visit(without)
        used = {node.id for node in ast.walk(without) if isinstance(node, ast.Name)}
        without = _WithoutTypeImports(used).visit(without)
    return without


class _WithoutTexts(ast.NodeTransformer):
    """Makes the texts empty in ``raise`` statements and in messages to a log."""

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return _Empty().generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        is_logged = (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Name)
            and call.func.value.id in LOGGERS
        )
        return (_Empty() if is_logged else self).generic_visit(node)


class _Empty(ast.NodeTransformer):
    """Makes all texts empty."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return ast.Constant("")


class _WithoutAnnotations(ast.NodeTransformer):
    """Removes annotations that nothing reads, see `numeric_syntax`."""

    is_in_function = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if not node.decorator_list:
            node.returns = None
            arguments = node.args
            variable = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
            for argument in (*arguments.posonlyargs, *arguments.args, *variable):
                argument.annotation = None
        outer, self.is_in_function = self.is_in_function, True
        self.generic_visit(node)
        self.is_in_function = outer
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        outer, self.is_in_function = self.is_in_function, False
        self.generic_visit(node)
        self.is_in_function = outer
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if not self.is_in_function:
            return self.generic_visit(node)
        if node.value is None:  # It makes the name one of the function.
            node.annotation = ast.Constant("")
            return node
        return ast.Assign([node.target], self.visit(node.value))

    def visit_If(self, node: ast.If) -> ast.AST | None:
        is_for_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return None if is_for_types and not node.orelse else self.generic_visit(node)


class _WithoutTypeImports(ast.NodeTransformer):
    """Removes the names that an import from `TYPE_MODULES` has beside the used ones.

    Args:
        used: Names in the rest of the file.
    """

    def __init__(self, used: set[str]) -> None:
        self.used = used

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        if node.level or node.module not in TYPE_MODULES:
            return node
        node.names = [alias for alias in node.names if (alias.asname or alias.name) in self.used]
        return node if node.names else None


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


def change_stamp(paths: Iterable[Path]) -> str:
    """Return a hash that differs if a file was changed, added or removed; "" if no file exists.

    It is computed from sizes, times and inodes, in the order of names; no file is read.
    """
    traces = [[str(path), *trace] for path, trace in _file_states(paths)]
    return hashlib.sha256(json.dumps(traces).encode()).hexdigest() if traces else ""


def content_hash(paths: Sequence[Path]) -> str:
    """Return the SHA-256 of a file, or of the names and hashes of several files or of a folder.

    Names are relative to the folder that contains all files, so that it may be moved.

    Raises:
        DataError: If a file cannot be read.
    """
    files = [path for path, _ in _file_states(paths)]
    try:
        if files == list(paths) and len(files) == 1:
            return sha256(files[0])
        folders = [path if path.is_dir() else path.parent for path in paths]
        top = os.path.commonpath([folder.absolute() for folder in folders])
        hashes = [[Path(os.path.relpath(path, top)).as_posix(), sha256(path)] for path in files]
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from error
    return hashlib.sha256(json.dumps(hashes).encode()).hexdigest()


class ContentCache:
    """Cache of `content_hash` in a folder, valid while the `change_stamp` stays the same.

    Args:
        folder: The folder of the cache file.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / CACHE_FILE

    def hash_of(self, paths: Sequence[Path]) -> str:
        """Return `content_hash` of the files; a cache that cannot be written is no error."""
        key, stamp = json.dumps([str(path.absolute()) for path in paths]), change_stamp(paths)
        cache = self._read()
        if cache.get(key, {}).get("stamp") == stamp:
            return str(cache[key]["sha256"])
        digest = content_hash(paths)
        newest = max((trace[1] for _, trace in _file_states(paths)), default=0)
        if change_stamp(paths) == stamp and time.time() - newest / 1e9 > SETTLING_SECONDS:
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_json(self._path, {**self._read(), key: {"stamp": stamp, "sha256": digest}})
        return digest

    def _read(self) -> dict[str, Any]:
        try:
            cache = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return cache if isinstance(cache, dict) else {}


def _file_states(paths: Iterable[Path]) -> Iterator[tuple[Path, tuple[int, int, int, int]]]:
    """Yield each file with its size, time of last change, time of modification and inode."""
    for path in paths:
        with wrap_read_errors(path, "cannot be read", "correct its name or its permissions"):
            for file in list_files_below(path) if is_folder(path) else [path]:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    status = file.stat()
                    times = max(status.st_mtime_ns, status.st_ctime_ns), status.st_mtime_ns
                    yield file, (status.st_size, *times, status.st_ino)


def list_files_below(folder: Path, parents: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield the files below a folder, sorted by path, without hidden files.

    Links to folders are followed.

    Args:
        folder: The folder.
        parents: Resolved paths of the folders around it; a link to one of them is skipped.
    """
    real = folder.resolve()
    if real in parents:
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from list_files_below(path, (*parents, real))
        else:
            yield path
