"""The source of a class that a notebook defines, as a module that stands by itself.

What the class needs is found by name and by value. What an installed package brings is imported;
functions, classes and plain constants of the user's own are written into the module. What else it
reads, an array or a model, has no source, and no run can be named by it.
"""

from __future__ import annotations
import __future__

import ast
import dis
import importlib.util
import inspect
import linecache
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from fl.base import plugins
from fl.base.errors import FedloomError

FUTURE = "from __future__ import annotations"
PLACE = "at the top of a cell or of a file; or in a plugin, see `fedloom new`"
PLAIN = (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, type(None))
READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
SEARCHED = ("fl.api", "typing")
"""Where a value may be from that does not say it, such as ``NonNegative``."""

Definition = type | FunctionType


def module(kind: type, summary: str) -> str:
    """The text of a module that defines a class, and all that it needs.

    Args:
        summary: The first line of the module's docstring.

    Raises:
        FedloomError: For a class without source, and for one that reads what cannot be written
            down.
    """
    needs = _Needs()
    needs.add(kind.__name__, kind, kind.__name__)
    head = [f'"""{summary}"""', *([FUTURE] if needs.deferred else [])]
    imports = "\n".join(sorted(needs.imports))
    return "\n\n\n".join(filter(None, [*head, imports, *needs.definitions.values()])) + "\n"


class _Needs:
    """What a module needs.

    Attributes:
        imports: Statements.
        definitions: By name, in an order in which each finds what it needs.
        deferred: Whether annotations are not evaluated where they stand.
    """

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.definitions: dict[str, str] = {}
        self.deferred = False
        self._values: dict[str, Any] = {}

    def add(self, name: str, value: Any, reader: str) -> None:
        """Add what ``reader`` reads by that name."""
        if name in self._values:
            if self._values[name] is not value:
                problem = f"{reader}: reads {name!r}, and so does what it calls, which is another"
                raise FedloomError(f"{problem}. Allowed: different names")
            return
        self._values[name] = value
        statement = _imported(name, value)
        if statement is not None:
            self.imports.add(statement)
        elif isinstance(value, Definition):
            self._define(name, value)
        elif isinstance(value, PLAIN) and _is_literal(value):
            self.definitions[name] = f"{name} = {value!r}"
        else:
            what = "module of your own" if isinstance(value, ModuleType) else type(value).__name__
            raise FedloomError(
                f"{reader}: reads {name!r}, a {what}, by whose content no run can be named. "
                "Allowed: fields of the class, numbers and texts, functions and classes with "
                "source, and what an installed package brings"
            )

    def _define(self, name: str, value: Definition) -> None:
        text, code = _source(value)
        space = _namespace(value)
        # First what it needs, as decorators, bases and defaults are read at once.
        for needed in sorted(set(_read(code)) - {value.__name__}):
            if needed in space:
                self.add(needed, space[needed], value.__name__)
        flag = __future__.annotations.compiler_flag
        self.deferred |= any(f.__code__.co_flags & flag for f in _functions(value))
        alias = "" if value.__name__ == name else f"\n\n\n{name} = {value.__name__}"
        self.definitions[name] = f"{text}{alias}"


def _source(value: Definition) -> tuple[str, CodeType]:
    """The text of a definition, decorators included, and its code as a statement by itself."""
    name = value.__name__
    if value.__qualname__ != name:
        problem = "is defined inside of a function, whose variables it may read"
        raise FedloomError(f"{value.__qualname__}: {problem}. Allowed: {PLACE}")
    lines = _lines(value)
    nodes = [
        node
        for node in ast.parse("".join(lines)).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name
    ]
    if not nodes:
        raise FedloomError(f"{name}: its source cannot be found. Allowed: {PLACE}")
    node = nodes[-1]
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    text = "".join(lines[first - 1 : node.end_lineno]).rstrip()
    return text, compile(text, name, "exec", dont_inherit=True)


def _lines(value: Definition) -> list[str]:
    """The file or the cell with a definition. A notebook's class has no file, but its functions
    know their cell.
    """
    files = [function.__code__.co_filename for function in _functions(value)]
    home = sys.modules.get(value.__module__)
    lines = linecache.getlines([*files, getattr(home, "__file__", None) or ""][0])
    if not lines:
        raise FedloomError(f"{value.__name__}: its source cannot be found. Allowed: {PLACE}")
    return lines


def _functions(value: Definition) -> list[FunctionType]:
    """A function itself, or those in the text of a class."""
    if isinstance(value, FunctionType):
        return [inspect.unwrap(value)]
    inner = [inspect.unwrap(getattr(f, "__func__", f)) for f in vars(value).values() if callable(f)]
    functions = [f for f in inner if isinstance(f, FunctionType)]
    # Those that a dataclass is given are of no text.
    return [f for f in functions if f.__code__.co_qualname.startswith(f"{value.__qualname__}.")]


def _namespace(value: Definition) -> Mapping[str, Any]:
    """The names that a definition reads: those of its module."""
    functions = _functions(value)
    return functions[0].__globals__ if functions else vars(sys.modules[value.__module__])


def _read(code: CodeType) -> Iterator[str]:
    """The names that code reads and does not bind itself."""
    bound: set[str] = set()
    for step in dis.get_instructions(code):
        if step.opname == "STORE_NAME":
            bound.add(step.argval)
        elif step.opname in READS and step.argval not in {*bound, "__name__"}:
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _read(constant)


def _imported(name: str, value: Any) -> str | None:
    """The import from an installed package that gives this value by this name, if there is one."""
    if isinstance(value, ModuleType):
        place = value.__name__
        if not _installed(place.partition(".")[0]):
            return None
        return f"import {place}" if place == name else f"import {place} as {name}"
    if isinstance(value, PLAIN):
        return None
    for place in (*SEARCHED, str(getattr(value, "__module__", ""))):
        if not place or not _installed(place.partition(".")[0]):
            continue
        there = importlib.import_module(place)
        for attribute in (name, str(getattr(value, "__name__", name))):
            if getattr(there, attribute, None) is value:
                alias = "" if attribute == name else f" as {name}"
                return f"from {place} import {attribute}{alias}"
    return None


@cache
def _installed(package: str) -> bool:
    """Whether a package is Fedloom, Python's own or installed, and no file that is being edited."""
    if package in sys.stdlib_module_names or package == plugins.FL.name:
        return package != "__main__"
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""] if spec else []
    roots = {Path(sysconfig.get_path(key)).resolve() for key in ("purelib", "platlib")}
    return any(root in Path(place).resolve().parents for place in places for root in roots)


def _is_literal(value: Any) -> bool:
    """Whether Python reads a value again from what it writes."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return False
