"""Source of a class or function that a notebook defines, as an independent module.

The values that it uses are found by name. Values of installed packages are imported; the
user's own functions, classes and simple constants are written into the module. Other values, such
as arrays and models, have no source, and a run's name cannot depend on them.

`inspect.getsource` was tried: it finds no class of a notebook (Python 3.11), and gives two lambdas
of one line the same text; `inspect.getclosurevars` misses names that inner functions read. So the
text comes from the cell, a lambda's place and the names that are read from byte code.
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
from fl.base.plugins import is_installed

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
LAMBDA = "<lambda>"
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
    return needs.text(summary)


def factory_text(function: FunctionType | type, class_name: str, summary: str) -> str:
    """Return the text of a module with a class whose ``build`` calls a function that makes models.

    Parameters of the function after ``shape`` and ``classes`` are keys of the class, with the
    function's defaults. A class of PyTorch's modules may take neither.

    Args:
        function: The function; also a lambda, or one that is defined inside a function, or a class
            of PyTorch's modules.
        class_name: Name of the class.
        summary: First line of the docstrings of module and class.

    Raises:
        FedloomError: If the function has other parameters or no source, or uses a value that cannot
            be written as text.
    """
    first: tuple[str, ...] = ("shape", "classes")
    needs, name = _Dependencies(), f"make_{class_name.lower()}"
    if isinstance(function, type):
        (first, keys), name = _constructor_keys(function), function.__name__
    else:
        keys = _factory_keys(function)
    needs.add(name, function, name)
    needs.imports.add("from dataclasses import dataclass")
    while needs.has_name(class_name):  # A function ``net`` often makes a class ``Net``.
        class_name += "Factory"
    fields = [f"    {key}: {type(value).__name__} = {value!r}" for key, value in keys.items()]
    arguments = ", ".join([*first, *(f"{key}=self.{key}" for key in keys)])
    wrapper = "\n".join(
        [
            "@dataclass(frozen=True)",
            f"class {class_name}:",
            f'    """{summary}"""',
            *(["", *fields] if fields else []),
            "",
            "    def build(self, shape, classes):",
            f"        return {name}({arguments})",
        ]
    )
    needs.definitions[class_name] = wrapper
    return needs.text(summary)


def _constructor_keys(cls: type) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return what the constructor of a module takes first, and its other parameters with defaults.

    Only numbers and texts can be keys; other parameters keep their defaults.

    Raises:
        FedloomError: If it needs more than ``shape`` and ``classes``.
    """
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [p for p in inspect.signature(cls).parameters.values() if p.kind not in variable]
    required = [p.name for p in parameters if p.default is inspect.Parameter.empty]
    if required not in ([], ["shape", "classes"]):
        call = f"{cls.__name__}({', '.join(f'{name}=...' for name in required)})"
        raise FedloomError(
            f"{cls.__name__} needs {', '.join(required)}",
            advice=f"model=lambda shape, classes: {call}",
        )
    keys = {
        p.name: p.default for p in parameters if isinstance(p.default, bool | int | float | str)
    }
    return tuple(required), keys


def _factory_keys(function: FunctionType) -> dict[str, Any]:
    """Return the parameters of a factory after shape and classes, with their defaults."""
    parameters = [*inspect.signature(function).parameters.values()]
    required = [p for p in parameters if p.default is inspect.Parameter.empty]
    if len(required) != 2 or parameters[:2] != required:
        raise FedloomError(
            f"{function.__name__}: has the parameters {inspect.signature(function)}",
            advice="write a function of shape and classes; further parameters need defaults",
        )
    keys = {parameter.name: parameter.default for parameter in parameters[2:]}
    for key, value in keys.items():
        if not isinstance(value, bool | int | float | str):
            problem = f"{function.__name__}: {key!r} is a {type(value).__name__}"
            raise FedloomError(problem, "a number, a text, True or False")
    return keys


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

    def has_name(self, name: str) -> bool:
        """Whether a value of the module has this name."""
        return name in self._values

    def text(self, summary: str) -> str:
        """Return the module with all statements, under a docstring."""
        head = [f'"""{summary}"""', *([FUTURE] if self.deferred else [])]
        imports = "\n".join(sorted(self.imports))
        return "\n\n\n".join(filter(None, [*head, imports, *self.definitions.values()])) + "\n"

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
            description = (
                "module of your own" if isinstance(value, ModuleType) else type(value).__name__
            )
            raise FedloomError(
                f"{reader}: uses the variable {name!r} ({description}), which has no source",
                "numbers, texts, functions and classes with source, values of installed packages",
                "make it a field of the class, or load it inside the class",
            )

    def _define(self, name: str, value: Definition) -> None:
        is_local = isinstance(value, FunctionType) and value.__qualname__ != value.__name__
        is_lambda = value.__name__ == LAMBDA
        text, code = _local_source(value, name) if is_local or is_lambda else _source(value)
        space = _namespace(value)
        # Dependencies come first, because decorators, bases and defaults are evaluated at once.
        for needed in sorted(set(_read(code)) - {value.__name__}):
            if needed in space:
                self.add(needed, space[needed], value.__name__)
        flag = __future__.annotations.compiler_flag
        self.deferred |= any(f.__code__.co_flags & flag for f in _functions(value))
        is_named = is_lambda or value.__name__ == name
        alias = "" if is_named else f"\n\n\n{name} = {value.__name__}"
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


def _local_source(function: Any, name: str) -> tuple[str, CodeType]:
    """Return the text of a lambda or of a function inside a function, and its compiled code.

    Defaults are written as their values, because they were evaluated when the function was defined.

    Args:
        function: The function.
        name: Name of a lambda in the text.
    """
    code = inspect.unwrap(function).__code__
    nodes = [
        node
        for node in ast.walk(ast.parse("".join(_lines(function))))
        if isinstance(node, ast.Lambda | ast.FunctionDef) and _contains(node, code)
    ]
    if not nodes:
        raise FedloomError(f"{name}: its source cannot be found", advice=ADVICE)
    node = min(nodes, key=lambda n: len(ast.unparse(n)))  # The innermost one.
    defaults = (function.__defaults__ or ()), (function.__kwdefaults__ or {})
    for value in (*defaults[0], *defaults[1].values()):
        if not _is_literal(value):
            problem = f"{name}: a default is a {type(value).__name__}, which has no source"
            raise FedloomError(problem, "numbers and texts")
    node.args.defaults = [_expression(value) for value in defaults[0]]
    keywords = [argument.arg for argument in node.args.kwonlyargs]
    node.args.kw_defaults = [
        _expression(defaults[1][key]) if key in defaults[1] else None for key in keywords
    ]
    text = ast.unparse(node)
    text = f"{name} = {text}" if isinstance(node, ast.Lambda) else text
    return text, compile(text, name, "exec", dont_inherit=True)


def _expression(value: Any) -> ast.expr:
    return ast.parse(repr(value), mode="eval").body


def _contains(node: ast.Lambda | ast.FunctionDef, code: CodeType) -> bool:
    """Whether all instructions of some code lie in the body of a definition."""
    if isinstance(node, ast.FunctionDef):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        return node.name == code.co_name and first == code.co_firstlineno
    if code.co_name != LAMBDA:
        return False
    body = node.body
    start = body.lineno, body.col_offset
    end = body.end_lineno or body.lineno, body.end_col_offset or 0
    places = [
        ((first, column), (last, last_column))
        for first, last, column, last_column in code.co_positions()
        if None not in (first, last, column, last_column) and (column, last_column) != (0, 0)
    ]
    return bool(places) and all(start <= a and b <= end for a, b in places)


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
    """Return the names that a definition can use: those of its module, and those around it."""
    functions = _functions(value)
    if isinstance(value, FunctionType):
        closed = inspect.getclosurevars(inspect.unwrap(value)).nonlocals
        return {**functions[0].__globals__, **closed}
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
