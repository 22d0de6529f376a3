"""Read a component's config keys from its source: importing it would load torch, for seconds."""

from __future__ import annotations

import ast
import dataclasses
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fl.base import fields, plugins


def dataclass_of(file: Path) -> type | None:
    """Return a dataclass with the config keys of the component in a file.

    It also has the component's docstring, ``training`` and plain class variables. None if the file
    cannot be understood without importing it.
    """
    try:
        tree = ast.parse(file.read_bytes())
        [entry] = [node for node in tree.body if isinstance(node, ast.ClassDef) and _builds(node)]
        names, keys = _names(tree), []
        namespace: dict[str, Any] = {"__doc__": ast.get_docstring(entry)}
        calls = [node for node in entry.decorator_list if isinstance(node, ast.Call)]
        for keyword in [keyword for call in calls for keyword in call.keywords]:
            if keyword.arg == "training":
                namespace["training"] = ast.literal_eval(keyword.value)
        for node in entry.body:
            if not isinstance(node, ast.AnnAssign):
                continue
            if not ast.unparse(node.annotation).startswith("ClassVar"):
                default = dataclasses.MISSING if node.value is None else _value(node.value, names)
                hint = _value(node.annotation, names)
                keys.append((ast.unparse(node.target), hint, dataclasses.field(default=default)))
            elif isinstance(node.value, ast.Constant):
                namespace[ast.unparse(node.target)] = node.value.value
            elif node.value is not None and ast.unparse(node.target) in ("tasks", "modalities"):
                namespace[ast.unparse(node.target)] = _value(node.value, names)
        if entry.bases:
            return None
        return dataclasses.make_dataclass(entry.name, keys, namespace=namespace, kw_only=True)
    except Exception:  # The caller imports the file, which shows the error.
        return None


def _builds(node: ast.ClassDef) -> bool:
    return any(
        isinstance(inner, ast.FunctionDef) and inner.name in ("build", "read")
        for inner in node.body
    )


def _names(tree: ast.Module) -> dict[str, Any]:
    """Return the names that annotations and defaults may use, with their values.

    These are types of keys, and constants of this file and of the files that it imports from.
    """
    # As authors import it from `fl.api`, whose own file has no constants.
    names = {**vars(fields), **vars(typing), "ALL_TASKS": ("any",)}
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    for node in imports:
        package, *inner = (node.module or "").split(".")
        file = plugins.FL.joinpath(*inner).with_suffix(".py")
        if package == plugins.FL.name and file.is_file():
            constants = _constants(ast.parse(file.read_bytes()), names)
            imported = {alias.name for alias in node.names} & constants.keys()
            names |= {name: constants[name] for name in imported}
    return names | _constants(tree, names)


def _constants(tree: ast.Module, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constants of a file that can be evaluated, such as ``Norm = Literal[...]``."""
    constants: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                constants[node.targets[0].id] = _value(node.value, {**names, **constants})
            except Exception:  # Its value needs an import.
                continue
    return constants


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    return eval(compile(ast.Expression(node), "", "eval"), dict(names))
