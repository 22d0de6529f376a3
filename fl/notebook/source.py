"""Source of a class that a notebook defines, as an independent module.

The values that the class uses are found by name. Values of installed packages are imported; the
user's own functions, classes and simple constants are written into the module. Other values, such
as arrays and models, have no source, and a run's name cannot depend on them.
"""

from __future__ import annotations
import __future__

import ast
import dis
import importlib.util
import inspect
import linecache
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from fl.base.errors import FedloomError
from fl.base.plugin_code import is_installed

FUTURE = "from __future__ import annotations"
ADVICE = "define it at the top level of a cell or file, or in a plugin (`fedloom new`)"
LITERAL_TYPES = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    tuple,
    list,
    dict,
    set,
    frozenset,
    type(None),
)
READ_OPERATIONS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
SEARCHED_MODULES = ("fl.api", "typing")
"""Modules of values that do not know their module, such as ``NonNegative``."""

Definition = type | FunctionType


def module_text(cls: type, summary: str) -> str:
    """Return the text of a module that defines a class and everything that it uses.

    Args:
        cls: The class.
        summary: First line of the module's docstring.

    Raises:
        FedloomError: If the class has no source, or uses a value that cannot be written as text.
    """
    needs = _Dependencies()
    needs.add(cls.__name__, cls, cls.__name__)
    head = [f'"""{summary}"""', *([FUTURE] if needs.deferred else [])]
    imports = "\n".join(sorted(needs.imports))
    return "\n\n\n".join(filter(None, [*head, imports, *needs.definitions.values()])) + "\n"


class _Dependencies:
    """Statements that a module needs.

    Attributes:
        imports: Import statements.
        definitions: Definitions by name; each one comes after the definitions that it uses.
        deferred: Whether annotations are evaluated later.
    """

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.definitions: dict[str, str] = {}
        self.deferred = False
        self._values: dict[str, Any] = {}

    def add(self, name: str, value: Any, reader: str) -> None:
        """Add a value that ``reader`` uses by this name."""
        if name in self._values:
            if self._values[name] is not value:
                problem = (
                    f"{reader}: {name!r} has different values in it and in a function it calls"
                )
                raise FedloomError(problem, advice="use different names")
            return
        self._values[name] = value
        statement = _imported(name, value)
        if statement is not None:
            self.imports.add(statement)
        elif isinstance(value, Definition):
            self._define(name, value)
        elif isinstance(value, LITERAL_TYPES) and _is_literal(value):
            self.definitions[name] = f"{name} = {value!r}"
        else:
            what = "module of your own" if isinstance(value, ModuleType) else type(value).__name__
            raise FedloomError(
                f"{reader}: uses the variable {name!r} ({what}), which has no source",
                "numbers, texts, functions and classes with source, values of installed packages",
                "make it a field of the class, or load it inside the class",
            )

    def _define(self, name: str, value: Definition) -> None:
        text, code = _source(value)
        space = _namespace(value)
        # Dependencies come first, because decorators, bases and defaults are evaluated at once.
        for needed in sorted(set(_read(code)) - {value.__name__}):
            if needed in space:
                self.add(needed, space[needed], value.__name__)
        flag = __future__.annotations.compiler_flag
        self.deferred |= any(f.__code__.co_flags & flag for f in _functions(value))
        alias = "" if value.__name__ == name else f"\n\n\n{name} = {value.__name__}"
        self.definitions[name] = f"{text}{alias}"


def _source(value: Definition) -> tuple[str, CodeType]:
    """Return the text of a definition with its decorators, and its compiled code."""
    name = value.__name__
    if value.__qualname__ != name:
        problem = "is defined inside a function, whose variables it can use"
        raise FedloomError(f"{value.__qualname__}: {problem}", advice=ADVICE)
    lines = _lines(value)
    nodes = [
        node
        for node in ast.parse("".join(lines)).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name
    ]
    if not nodes:
        raise FedloomError(f"{name}: its source cannot be found", advice=ADVICE)
    node = nodes[-1]
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    text = "".join(lines[first - 1 : node.end_lineno]).rstrip()
    return text, compile(text, name, "exec", dont_inherit=True)


def _lines(value: Definition) -> list[str]:
    """Return the lines of the file or cell of a definition.

    A class of a notebook does not know its cell, but its functions do.
    """
    files = [function.__code__.co_filename for function in _functions(value)]
    defining_module = sys.modules.get(value.__module__)
    lines = linecache.getlines([*files, getattr(defining_module, "__file__", None) or ""][0])
    if not lines:
        raise FedloomError(f"{value.__name__}: its source cannot be found", advice=ADVICE)
    return lines


def _functions(value: Definition) -> list[FunctionType]:
    """Return a function itself, or the functions in the text of a class."""
    if isinstance(value, FunctionType):
        return [inspect.unwrap(value)]
    inner = [inspect.unwrap(getattr(f, "__func__", f)) for f in vars(value).values() if callable(f)]
    functions = [f for f in inner if isinstance(f, FunctionType)]
    # Functions that the dataclass decorator adds have no text.
    return [f for f in functions if f.__code__.co_qualname.startswith(f"{value.__qualname__}.")]


def _namespace(value: Definition) -> Mapping[str, Any]:
    """Return the namespace of the module of a definition."""
    functions = _functions(value)
    return functions[0].__globals__ if functions else vars(sys.modules[value.__module__])


def _read(code: CodeType) -> Iterator[str]:
    """Return the names that code reads and does not bind itself."""
    bound: set[str] = set()
    for step in dis.get_instructions(code):
        if step.opname == "STORE_NAME":
            bound.add(step.argval)
        elif step.opname in READ_OPERATIONS and step.argval not in {*bound, "__name__"}:
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _read(constant)


def _imported(name: str, value: Any) -> str | None:
    """Return the import statement for a value of an installed package; None for other values."""
    if isinstance(value, ModuleType):
        path = value.__name__
        if not is_installed(path.partition(".")[0]):
            return None
        return f"import {path}" if path == name else f"import {path} as {name}"
    if isinstance(value, LITERAL_TYPES):
        return None
    for path in (*SEARCHED_MODULES, str(getattr(value, "__module__", ""))):
        if not path or not is_installed(path.partition(".")[0]):
            continue
        module = importlib.import_module(path)
        for attribute in (name, str(getattr(value, "__name__", name))):
            if getattr(module, attribute, None) is value:
                alias = "" if attribute == name else f" as {name}"
                return f"from {path} import {attribute}{alias}"
    return None


def _is_literal(value: Any) -> bool:
    """Whether the text of a value evaluates to the same value."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return False
