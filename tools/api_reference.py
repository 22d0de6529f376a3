"""The page of all names that authors import from `fl.api`, in the sections of its list."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import fl
import fl.api
from fl.cli import catalogue

LIST = Path(fl.api.__file__).with_suffix(".pyi")
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):$", re.MULTILINE)


def blocks() -> Iterator[str]:
    """A heading for each comment of the list, and below it each name that is imported there."""
    for heading, names in _sections():
        yield f"## {heading}"
        for name in names:
            yield f"### {name}"
            yield from _about(name, getattr(fl.api, name))


def python() -> Iterator[str]:
    """A heading for each name that `fl` exports, and for each function of its results."""
    for name in fl.MODULE_BY_NAME:
        thing = getattr(fl, name)
        yield f"## {name}"
        if name != fl.Result.__name__:
            yield from _about(name, thing)
            continue
        yield _text(inspect.getdoc(thing) or "")
        for key, member in vars(thing).items():
            if inspect.isfunction(member) and not key.startswith("_"):
                yield f"### {name}.{key}"
                yield from _about(key, member)


def _sections() -> Iterator[tuple[str, list[str]]]:
    """The comments of the list at the beginning of a line, each with the names that follow."""
    heading, names = "", list[str]()
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if line.startswith("# ") and not line.startswith("# ruff"):
            if names:
                yield heading, names
            heading, names = line.removeprefix("# ").rstrip("."), []
        names += re.findall(r"\bas (\w+)", line)
    yield heading, names


def _about(name: str, thing: Any) -> Iterator[str]:
    """Signature and docstring; of a class its public methods, of a module its functions."""
    if inspect.ismodule(thing):
        yield _text(inspect.getdoc(thing) or "")
        yield _members(_functions(thing))
    elif inspect.isclass(thing):
        fields = getattr(thing, "__dataclass_fields__", {})
        yield _text(inspect.getdoc(thing) or "", fields)
        yield _members({key: member for key, member in vars(thing).items() if key not in fields})
    elif inspect.isfunction(thing):
        yield f"```\n{name}{_signature(thing)}\n```"
        yield _text(inspect.getdoc(thing) or "", inspect.signature(thing).parameters)
    else:
        yield from _constant(name)


def _functions(module: ModuleType) -> dict[str, Any]:
    return {
        name: thing
        for name, thing in vars(module).items()
        if inspect.isfunction(thing) and thing.__module__ == module.__name__
    }


def _members(things: Any) -> str:
    """A line for each public function: its signature, and the first sentence about it."""
    lines = []
    for name, thing in things.items():
        function = thing.fget if isinstance(thing, property) else thing
        function = getattr(function, "__func__", function)
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        called = name if isinstance(thing, property) else f"{name}{_signature(function)}"
        first = inspect.cleandoc(function.__doc__).split("\n\n")[0]
        lines.append(f"- `{called}`: {' '.join(first.split())}")
    return "\n".join(lines)


def _signature(function: Any) -> str:
    """Names and defaults alone, as docstrings and type checkers say the types."""
    bare = inspect.Signature.empty
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=bare)
        for name, parameter in signature.parameters.items()
        if name != "self"
    ]
    text = str(signature.replace(parameters=parameters, return_annotation=bare))
    return re.sub(r"<function (\w+)[^>]*>", r"\1", re.sub(r" at 0x\w+", "", text))


def _constant(name: str) -> Iterator[str]:
    """The value of a constant or an alias in its module, and the string below it."""
    module = sys.modules[vars(fl.api)["MODULE_BY_NAME"][name]]
    body = ast.parse(inspect.getsource(module)).body
    for statement, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and name in _targets(statement):
            yield f"```\n{ast.unparse(statement)}\n```"
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                yield _text(inspect.cleandoc(str(below.value.value)))


def _targets(statement: ast.Assign | ast.AnnAssign) -> set[str]:
    target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def _text(docstring: str, names: Iterable[str] = ()) -> str:
    """A docstring as Markdown: sections, and what is said of ``names``, become lists."""
    first, *parts = SECTION.split(docstring)
    shown = []
    for paragraph in first.strip().split("\n\n"):
        said = catalogue.parse_key_texts(paragraph, names)
        lines = [f"- `{name}`: {text}" for name, text in said.items()]
        shown.append("\n".join(lines) if lines else paragraph)
    for heading, text in zip(parts[::2], parts[1::2], strict=True):
        body, _, rest = text.strip("\n").partition("\n\n")
        items = re.split(r"\n(?= {4}\S)", f"\n{body}")[1:]
        lines = [" ".join(item.split()) for item in items]
        if heading in ("Returns", "Yields"):
            shown.append(f"{heading}: {' '.join(lines)}")
        else:
            named = [re.sub(r"^([\w*, ]+): ", r"`\1`: ", line) for line in lines]
            shown.append(f"{heading}:\n\n" + "\n".join(f"- {line}" for line in named))
        if rest.strip():
            shown.append(inspect.cleandoc(rest))
    return "\n\n".join(text for text in shown if text)
