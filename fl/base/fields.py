"""Config values checked against the annotations of the code that uses them.

A hyper-parameter is declared once, where it is used, as an annotated dataclass field or an
annotated keyword-only argument::

    @dataclass(frozen=True)
    class FedProx:
        mu: NonNegative = 0.01

``parse(FedProx, {"mu": 0.1}, where)`` then yields every field with its default filled in and its
type settled (``1`` becomes ``1.0``), so that equal meanings give equal specs, or raises a
`ConfigError` that names the place, the value and what is allowed.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from fl.base.errors import ConfigError, ConfigProblems, Location, unknown

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Bound:
    """An interval of numbers; ``above`` and ``below`` exclude their ends, ``low`` and ``high`` do
    not.

    Attributes:
        limit: Beyond it no value makes sense. Only an error for a value beyond it names it.
    """

    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    limit: float = math.inf

    def admits(self, value: float) -> bool:
        """Whether ``value`` is finite and inside."""
        inside = self.low <= value <= self.high and self.above < value < self.below
        return abs(value) != math.inf and inside and value <= self.limit

    def __str__(self) -> str:
        parts = [
            (self.above, f"> {_text(self.above)}"),
            (self.low, f">= {_text(self.low)}"),
            (self.below, f"< {_text(self.below)}"),
            (self.high, f"<= {_text(self.high)}"),
        ]
        return (
            " and ".join(text for end, text in parts if math.isfinite(end)) or "any finite number"
        )


def _text(end: float) -> str:
    return str(end) if isinstance(end, int) else f"{end:g}"


LARGEST = 3.4e38
"""Of 32-bit floats: what is beyond becomes infinite beside a weight."""
Positive = Annotated[float, Bound(above=0, limit=LARGEST)]
NonNegative = Annotated[float, Bound(low=0, limit=LARGEST)]
Share = Annotated[float, Bound(low=0, high=1)]
"""A fraction of a whole, both ends included."""
Count = Annotated[int, Bound(low=1, limit=2**31 - 1)]
"""A number of things, no more than tables have room to number."""
Index = Annotated[int, Bound(low=0)]
Seed = Annotated[int, Bound(low=0, limit=2**63 - 1)]
"""A seed of random numbers, as large as a column of 64-bit numbers can hold. Data sets and
partitions that differ only in keys of this type are draws of one setting.
"""

REQUIRED = object()


@dataclass(frozen=True)
class Field:
    """One declared config key: its name, its annotation and its default (or `REQUIRED`)."""

    name: str
    hint: Any
    default: Any


def fields(target: type | Callable[..., Any]) -> dict[str, Field]:
    """The config keys that a dataclass or the keyword-only arguments of a function declare."""
    hints = _hints(target)
    if dataclasses.is_dataclass(target):
        return {
            f.name: Field(f.name, hints[f.name], _default(f))
            for f in dataclasses.fields(target)
            if f.init
        }
    keyword_only = [
        p for p in inspect.signature(target).parameters.values() if p.kind is p.KEYWORD_ONLY
    ]
    return {
        p.name: Field(p.name, hints[p.name], REQUIRED if p.default is p.empty else p.default)
        for p in keyword_only
    }


@cache
def _hints(target: type | Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a target, which take long to evaluate and are asked for at every point."""
    return typing.get_type_hints(target, include_extras=True)


FORMER_NAMES = "former names"
"""Key of the metadata of a dataclass field under which its former names are kept."""


def renamed_field(*former_names: str, default: Any) -> Any:
    """Declare a dataclass field whose config key had other names, which are still read."""
    return dataclasses.field(default=default, metadata={FORMER_NAMES: former_names})


def with_current_names(
    target: type | Callable[..., Any], values: Mapping[str, Any], location: Location
) -> dict[str, Any]:
    """Return the values with former names of keys replaced; a warning names the current ones."""
    declared = dataclasses.fields(target) if dataclasses.is_dataclass(target) else ()
    current = {old: f.name for f in declared for old in f.metadata.get(FORMER_NAMES, ())}
    return replace_former_names(current, values, location)


def replace_former_names(
    current: Mapping[str, str], values: Mapping[str, Any], location: Location
) -> dict[str, Any]:
    """Return the values with former names of keys replaced; a warning names the current ones.

    Args:
        current: The current name by former name.
        values: The keys as a user set them, under former or current names.
        location: The location of the values.

    Raises:
        ConfigError: If a key is set under both names.
    """
    renamed: dict[str, Any] = {}
    for key, given in values.items():
        name = current.get(key, key)
        if name != key:
            if name in values:
                problem = f"is the former name of `{name}`, which is set too"
                raise ConfigError(location / key, problem, advice=f"set only `{name}`")
            _warn_of_former_name(location / key, name)
        renamed[name] = given
    return renamed


@cache
def _warn_of_former_name(location: Location, name: str) -> None:
    """Warn once in a process."""
    log.warning("%s: is called `%s` now; the former name will be refused later", location, name)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return REQUIRED


def parse(
    target: type | Callable[..., Any], values: Mapping[str, Any] | None, location: Location
) -> dict[str, Any]:
    """All declared keys of ``target``, with the given values checked and defaults filled in.

    Raises:
        ConfigError: For unknown keys, required ones that are missing, wrong types and numbers out
            of bounds, all at once.
    """
    values = with_current_names(target, mapping(values, location), location)
    declared = fields(target)
    problems = ConfigProblems()
    problems.errors += [
        unknown(location / key, "key", key, declared) for key in values if key not in declared
    ]
    resolved = {}
    for name, field in declared.items():
        try:
            if name in values:
                resolved[name] = value(field.hint, values[name], location / name)
            elif field.default is REQUIRED:
                raise ConfigError(location / name, "is missing", describe(field.hint))
            else:
                resolved[name] = field.default
        except ConfigError as error:
            problems.errors.append(error)
    problems.raise_all()
    return resolved


def at_default(target: type | Callable[..., Any], values: Mapping[str, Any]) -> list[str]:
    """The keys whose values are the defaults that ``target`` declares."""
    return [
        key
        for key, field in fields(target).items()
        if key in values and _lists(values[key]) == _lists(field.default)
    ]


def _lists(value: Any) -> Any:
    """A value with lists for tuples, as JSON has no others."""
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


def mapping(values: Any, location: Location) -> Mapping[str, Any]:
    """``values`` as a mapping with text keys; nothing (``None``) is the empty one."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise ConfigError(location, f"is {values!r}", "a mapping (key: value)")
    for key in values:
        if not isinstance(key, str):
            raise ConfigError(location / str(key), f"the key {key!r} is not text", "a text key")
    return values


def value(hint: Any, given: Any, location: Location) -> Any:
    """``given``, converted to the annotation ``hint``.

    Raises:
        ConfigError: If the annotation does not allow it.
    """
    bound, hint = _strip(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return given
    if origin in (typing.Union, types.UnionType):
        return _union(args, given, location)
    if origin is dict:
        return {
            key: value(args[1], item, location / key)
            for key, item in mapping(given, location).items()
        }
    if origin is Literal:
        if given not in args or isinstance(given, bool) != any(
            given is a for a in args if isinstance(a, bool)
        ):
            raise unknown(location, "value", given, [str(a) for a in args])
        return given
    if origin in (tuple, list):
        if not isinstance(given, list | tuple):
            raise ConfigError(location, f"is {given!r}", describe(hint))
        return origin(value(args[0], item, location / i) for i, item in enumerate(given))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return hint(**parse(hint, given, location))
    return _scalar(hint, bound, given, location)


def _strip(hint: Any) -> tuple[Bound | None, Any]:
    if typing.get_origin(hint) is Annotated:
        base, *extras = typing.get_args(hint)
        return next((e for e in extras if isinstance(e, Bound)), None), base
    return None, hint


def is_seed(hint: Any) -> bool:
    """Whether a value with that annotation is a `Seed`."""
    return bool(hint == Seed)


def is_sequence(hint: Any) -> bool:
    """Whether a value with that annotation is a list, or a list that may be left out."""
    hint = _strip(hint)[1]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        return all(map(is_sequence, options))
    return typing.get_origin(hint) in (tuple, list)


def _union(options: tuple[Any, ...], given: Any, location: Location) -> Any:
    if given is None and type(None) in options:
        return None
    errors = []
    for option in options:
        if option is type(None):
            continue
        try:
            return value(option, given, location)
        except ConfigError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    raise ConfigError(location, f"is {given!r}", " or ".join(describe(o) for o in options))


def _scalar(kind: Any, bound: Bound | None, given: Any, location: Location) -> Any:
    allowed = describe(kind if bound is None else Annotated[kind, bound])
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if kind is float and number:
        try:
            given = float(given)
        except OverflowError:
            raise ConfigError(location, f"is {given!r}", allowed) from None
    if kind is int and isinstance(given, float) and given.is_integer():
        given = int(given)
    if type(given) is not kind:
        raise ConfigError(location, f"is {given!r} ({type(given).__name__})", allowed)
    bound = bound or (Bound() if kind is float else None)
    if bound is not None and not bound.admits(given):
        if given > bound.limit:
            allowed += f" and <= {_text(bound.limit)}"
        raise ConfigError(location, f"is {given!r}", allowed)
    return given


NAMES = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}


def describe(hint: Any) -> str:
    """An annotation in a user's words: ``a number > 0``, ``one of sgd, adamw``."""
    bound, hint = _strip(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return "a name, or one name with its keys"
    if origin in (typing.Union, types.UnionType):
        return " or ".join("nothing" if a is type(None) else describe(a) for a in args)
    if origin is Literal:
        return "one of " + ", ".join(str(a) for a in args)
    if origin in (tuple, list):
        return f"a list, each {describe(args[0])}"
    name = NAMES.get(hint, "a mapping (key: value)")
    return f"{name} {bound}" if bound else name
