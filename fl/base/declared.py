"""What the file of a method, a term or a model declares, without importing what only its arithmetic
needs: torch takes seconds, and whoever asks for the keys of a method computes nothing.

Of the file's syntax that part is kept, and executed, which its dataclass needs when it is defined:
its fields and class variables, and the imports and constants that these name. Of a task, which a
function makes, it is what the record of the task says beside its functions.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from fl.base import plugins

ENTRY = ("build", "read")
"""The method by which the dataclass of an entry is known, see `fl.base.registry`."""


def dataclass_of(file: Path) -> type | None:
    """The dataclass of an entry with its fields, class variables and docstring, but no methods.

    Returns:
        None for a file that does not define exactly one, or that defines it in another way.
    """
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
        [entry] = [node for node in tree.body if isinstance(node, ast.ClassDef) and _is_entry(node)]
    except (OSError, SyntaxError, ValueError):
        return None
    body = [one for one in entry.body if not isinstance(one, ast.FunctionDef)]
    bare = ast.ClassDef(entry.name, entry.bases, entry.keywords, body, entry.decorator_list)
    # With its folder, as a method and a term may have one name.
    module = ModuleType(f"{__name__}.{file.parent.name}.{file.stem}")
    # Where `typing.get_type_hints` looks names up.
    sys.modules[module.__name__] = module
    try:
        _execute([*_needed(tree, bare), bare], vars(module), file)
    except Exception:  # Whatever its code raises, importing it says it better.
        return None
    made = vars(module)[bare.name]
    return made if isinstance(made, type) and dataclasses.is_dataclass(made) else None


def function_of(file: Path) -> Callable[[], Any] | None:
    """The function of an entry that gives a record, as that of a task does; the record has None in
    place of the functions of its file.

    Returns:
        None for a file that does not define it in that way.
    """
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
        functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
        entry = functions[file.stem]
        [given] = [one.value for one in entry.body if isinstance(one, ast.Return)]
        if ast.unparse(entry.args) or not isinstance(given, ast.Name):
            return None
        [call] = [
            one.value
            for one in tree.body
            if isinstance(one, ast.Assign) and [*_defined(one)] == [given.id]
        ]
        if not isinstance(call, ast.Call):
            return None
        for keyword in call.keywords:
            if isinstance(keyword.value, ast.Name) and keyword.value.id in functions:
                keyword.value = ast.Constant(None)
        names: dict[str, Any] = {"__name__": f"{__name__}.{file.stem}"}
        made = ast.Assign([ast.Name(given.id, ast.Store())], call)
        _execute([*_needed(tree, call), made], names, file)
    except Exception:  # Whatever its code raises, importing it says it better.
        return None
    return lambda: names[given.id]


def _is_entry(node: ast.ClassDef) -> bool:
    return any(isinstance(one, ast.FunctionDef) and one.name in ENTRY for one in node.body)


def _execute(statements: Collection[ast.stmt], names: dict[str, Any], file: Path) -> None:
    used = {name for one in statements for name in _used(one)}
    for statement in statements:
        if isinstance(statement, ast.ImportFrom):
            wanted = [one for one in statement.names if (one.asname or one.name) in used]
            if (found := _constants(statement, wanted)) is not None:
                names |= found
                continue
            statement = ast.ImportFrom(statement.module, wanted, statement.level)
        code = ast.fix_missing_locations(ast.Module([statement], []))
        exec(compile(code, str(file), "exec"), names)


def _constants(statement: ast.ImportFrom, wanted: list[ast.alias]) -> dict[str, Any] | None:
    """Constants of a module of ours or of a plugin that is not imported yet; None for all else."""
    package, *inner = (statement.module or "").split(".")
    root = plugins.roots().get(package)
    if root is None or statement.level or statement.module in sys.modules:
        return None
    file = root.joinpath(*inner).with_suffix(".py")
    if not file.is_file():
        return None
    tree = ast.parse(file.read_bytes(), filename=str(file))
    kinds = (ast.Assign, ast.AnnAssign)
    there = {name for one in tree.body if isinstance(one, kinds) for name in _defined(one)}
    if not {one.name for one in wanted} <= there:
        return None
    names: dict[str, Any] = {"__name__": statement.module}
    asked = [ast.Expr(ast.Name(one.name, ast.Load())) for one in wanted]
    _execute([*_needed(tree, *asked), *asked], names, file)
    return {one.asname or one.name: names[one.name] for one in wanted}


def _needed(tree: ast.Module, *nodes: ast.AST) -> list[ast.stmt]:
    """The statements of a module that define what ``nodes`` use, in their order."""
    chosen: set[int] = set()
    waiting = list(nodes)
    while waiting:
        names = set(_used(waiting.pop()))
        for i, statement in enumerate(tree.body):
            if i not in chosen and names & set(_defined(statement)):
                chosen.add(i)
                waiting.append(statement)
    return [tree.body[i] for i in sorted(chosen)]


def _used(node: ast.AST) -> Iterator[str]:
    """The names that a piece of syntax uses."""
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and not hasattr(builtins, one.id):
            yield one.id


def _defined(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module defines."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (one.asname or one.name.partition(".")[0] for one in statement.names)
    elif isinstance(statement, ast.ClassDef | ast.FunctionDef):
        yield statement.name
    elif isinstance(statement, ast.Assign):
        found = (one for target in statement.targets for one in ast.walk(target))
        yield from (one.id for one in found if isinstance(one, ast.Name))
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id
