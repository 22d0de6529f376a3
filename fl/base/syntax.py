"""Hash of code, by its syntax.

The syntax of a file has no docstrings, comments and layout, and that of Fedloom's own code no type
hints and texts of errors either (`numeric_syntax`).
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from fl.base.hashes import digest


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
    syntax: ast.Module = _WithoutTexts().visit(tree)
    if has_lazy_annotations:
        syntax = _WithoutAnnotations().visit(syntax)
        names = {node.id for node in ast.walk(syntax) if isinstance(node, ast.Name)}
        syntax = _WithoutTypeImports(names).visit(syntax)
    return syntax


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
    """Removes imports from `TYPE_MODULES` that nothing uses.

    Args:
        names: Names in the rest of the file.
    """

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        if node.level or node.module not in TYPE_MODULES:
            return node
        node.names = [alias for alias in node.names if (alias.asname or alias.name) in self.names]
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
