"""Config values checked against the annotations of the code that uses them.

A hyper-parameter is declared once, where it is used, as an annotated dataclass field or an
annotated keyword-only argument::

    @dataclass(frozen=True)
    class FedProx:
        mu: NonNegative = 0.01

``parse(FedProx, {"mu": 0.1}, location)`` then returns all fields with defaults filled in and values
of the right type (``1`` becomes ``1.0``), so that equal meanings give equal specs, or raises a
`ConfigError` that names the location, the value and the allowed values.

msgspec (0.22) was tried: it checks types and bounds, but stops at the first wrong value, ignores
unknown keys of a dataclass, takes infinity as ``>= 0`` and refuses 2.0 as a whole number; its
messages lack a number's value and what a choice allows. Former names would be code here anyway.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import math
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

from fl.base.errors import (
    ConfigError,
    ConfigProblems,
    Location,
    meant_name,
    single_errors,
    unknown_name,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Bound:
    """An interval of numbers.

    Attributes:
        low, high: Ends that belong to the interval.
        above, below: Ends that do not belong to it.
        limit: Technical maximum, which an error names only for larger values.
    """

    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    limit: float = math.inf

    def admits(self, value: float) -> bool:
        """Whether ``value`` is finite and lies in the interval."""
        inside = self.low <= value <= self.high and self.above < value < self.below
        return abs(value) != math.inf and inside and value <= self.limit

    def __str__(self) -> str:
        texts = [
            (self.above, f"> {_text(self.above)}"),
            (self.low, f">= {_text(self.low)}"),
            (self.below, f"< {_text(self.below)}"),
            (self.high, f"<= {_text(self.high)}"),
        ]
        return (
            " and ".join(text for end, text in texts if math.isfinite(end)) or "any finite number"
        )


def _text(end: float) -> str:
    return str(end) if isinstance(end, int) else f"{end:g}"


LARGEST_FLOAT = 3.4e38
"""Largest float32; larger values overflow when multiplied with a weight."""
Positive = Annotated[float, Bound(above=0, limit=LARGEST_FLOAT)]
NonNegative = Annotated[float, Bound(low=0, limit=LARGEST_FLOAT)]
Share = Annotated[float, Bound(low=0, high=1)]
"""A fraction from 0 to 1, both included."""
Count = Annotated[int, Bound(low=1, limit=2**31 - 1)]
"""A positive whole number that fits into the columns of tables (int32)."""
Cores = Annotated[int, Bound(low=1, limit=1024)]
"""A number of threads or processes on one machine; PyTorch crashes with a million threads."""
Index = Annotated[int, Bound(low=0)]
Seed = Annotated[int, Bound(low=0, limit=2**63 - 1)]
"""A seed of random numbers, which fits into a column of int64.

Data sets and partitions that differ only in keys of this type are draws of one setting.
"""

REQUIRED = object()


@dataclass(frozen=True)
class Field:
    """A declared config key: its name, its annotation and its default (or `REQUIRED`)."""

    name: str
    hint: Any
    default: Any


def fields(target: type | Callable[..., Any]) -> dict[str, Field]:
    """Return the config keys that a dataclass or a function's keyword-only arguments declare."""
    if dataclasses.is_dataclass(target):
        fresh_fields = [
            dataclasses.replace(f, default=factory()) for f, factory in _made_defaults(target)
        ]
        return _declared(target) | {field.name: field for field in fresh_fields}
    return dict(_declared(target))


@cache
def _made_defaults(target: type) -> list[tuple[Field, Callable[[], Any]]]:
    """Return the fields of a dataclass whose default is made anew each time, with its factory."""
    return [
        (_declared(target)[f.name], f.default_factory)
        for f in dataclasses.fields(target)
        if f.init and f.default_factory is not dataclasses.MISSING
    ]


@cache
def _declared(target: type | Callable[..., Any]) -> dict[str, Field]:
    """Return `fields` of a target, without defaults that are made anew each time."""
    hints = _hints(target)
    if dataclasses.is_dataclass(target):
        return {
            f.name: Field(
                f.name, hints[f.name], REQUIRED if f.default is dataclasses.MISSING else f.default
            )
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
    """Return the annotations of a target; cached, because evaluating them takes long."""
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
    for key, value in values.items():
        name = current.get(key, key)
        if name != key:
            if name in values:
                problem = f"is the former name of `{name}`, which is set too"
                raise ConfigError(location / key, problem, advice=f"set only `{name}`")
            _warn_of_former_name(location / key, name)
        renamed[name] = value
    return renamed


@cache
def _warn_of_former_name(location: Location, name: str) -> None:
    """Warn once in a process."""
    log.warning("%s: is called `%s` now; the former name will be refused later", location, name)


class ParsedKeys(NamedTuple):
    """Config keys that were parsed, as far as they are right.

    Attributes:
        values: The value of each right key, with defaults filled in.
        wrong_keys: Declared keys whose value is unknown: it is wrong or missing, or stands under a
            misspelt name.
        errors: What is wrong.
    """

    values: dict[str, Any]
    wrong_keys: set[str]
    errors: list[ConfigError]


def unknown_key(location: Location, key: str, names: Iterable[str]) -> ConfigError:
    """Return the error of an unknown key."""
    return unknown_name(location, "key", key, names)


def parse_keys(
    target: type | Callable[..., Any],
    values: Mapping[str, Any] | None,
    location: Location,
    other_keys: Collection[str] = (),
    unknown: Callable[[Location, str, Iterable[str]], ConfigError] = unknown_key,
) -> ParsedKeys:
    """Return what is right of the declared keys of ``target``, and what is wrong.

    A key is not called missing where an unknown key seems to be its misspelling.

    Args:
        target: A dataclass or function.
        values: The values of a config.
        location: Their location.
        other_keys: Keys that may stand beside them in a config.
        unknown: Returns the error of an unknown key from its location, itself, and all keys.
    """
    declared = fields(target)
    try:
        values = with_current_names(target, mapping(values, location), location)
    except ConfigError as error:
        return ParsedKeys({}, {*declared}, single_errors(error))
    existing = [*declared, *other_keys]
    wrong_keys, problems = misspelt_keys(values, existing), ConfigProblems()
    problems.errors += [
        unknown(location / key, key, existing) for key in values if key not in declared
    ]
    resolved = {}
    for name, field in declared.items():
        if name not in values and field.default is not REQUIRED:
            resolved[name] = field.default
            continue
        error_count = len(problems.errors)
        with problems.collected():
            if name in values:
                resolved[name] = value(field.hint, values[name], location / name)
            elif name not in wrong_keys:
                raise ConfigError(location / name, "is missing", describe(field.hint))
        if len(problems.errors) > error_count:
            wrong_keys.add(name)
    return ParsedKeys(resolved, wrong_keys, problems.errors)


def misspelt_keys(values: Iterable[str], declared: Iterable[str]) -> set[str]:
    """Return the declared keys that are probably meant by unknown ones."""
    names, written = {*declared}, {*values}
    candidates = {meant_name(key, names) for key in written - names}
    return {name for name in candidates if name is not None and name not in written}


def parse(
    target: type | Callable[..., Any],
    values: Mapping[str, Any] | None,
    location: Location,
    other_keys: Collection[str] = (),
) -> dict[str, Any]:
    """Return all declared keys of ``target``, with values checked and defaults filled in.

    Args:
        target: A dataclass or function.
        values: The values of a config.
        location: Their location.
        other_keys: Keys that may stand beside them, and are taken out before.

    Raises:
        ConfigError: For unknown keys, missing keys, wrong types and numbers out of bounds, all at
            once.
    """
    parsed = parse_keys(target, values, location, other_keys)
    ConfigProblems(parsed.errors).raise_all()
    return parsed.values


def at_default(target: type | Callable[..., Any], values: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values equal the defaults that ``target`` declares."""
    return [
        key
        for key, field in fields(target).items()
        if key in values and _lists(values[key]) == _lists(field.default)
    ]


def _lists(value: Any) -> Any:
    """Return a value with lists in place of tuples, as JSON has no tuples."""
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


def mapping(values: Any, location: Location) -> Mapping[str, Any]:
    """Return ``values`` as a mapping with text keys; ``None`` becomes an empty mapping."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise ConfigError(location, f"is {values!r}", "a mapping (key: value)")
    for key in values:
        if not isinstance(key, str):
            problem = f"the key {key!r} is not a text"
            raise ConfigError(location / str(key), problem, advice="put it in quotes")
    return values


def value(hint: Any, raw: Any, location: Location) -> Any:
    """Convert a raw value of a config to the type of an annotation.

    Raises:
        ConfigError: If the annotation does not allow the value.
    """
    bound, hint = _strip(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return raw
    if origin in (typing.Union, types.UnionType):
        return _union(args, raw, location)
    if origin is dict:
        items = mapping(raw, location).items()
        return dict(zip(dict(items), _items(args[1], items, location), strict=True))
    if typing.is_typeddict(hint):
        return dict(mapping(raw, location))
    if origin is Literal:
        if raw not in args or isinstance(raw, bool) != any(
            raw is a for a in args if isinstance(a, bool)
        ):
            raise unknown_name(location, "value", raw, [str(a) for a in args])
        return raw
    if origin in (tuple, list):
        if not isinstance(raw, list | tuple):
            advice = f"[{raw}]" if _is_value(args[0], raw, location) else ""
            raise ConfigError(location, f"is {raw!r}", describe(hint), advice)
        return origin(_items(args[0], enumerate(raw), location))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return hint(**parse(hint, raw, location))
    return _scalar(hint, bound, raw, location)


def _is_value(hint: Any, raw: Any, location: Location) -> bool:
    """Whether an annotation of one text, number or truth value allows a value."""
    try:
        return isinstance(value(hint, raw, location), str | int | float)
    except ConfigError:
        return False


def _items(hint: Any, items: Iterable[tuple[str | int, Any]], location: Location) -> list[Any]:
    """Convert the items of a list or mapping; raise what is wrong with them, all at once."""
    problems, converted = ConfigProblems(), []
    for key, item in items:
        with problems.collected():
            converted.append(value(hint, item, location / key))
    problems.raise_all()
    return converted


def _strip(hint: Any) -> tuple[Bound | None, Any]:
    if typing.get_origin(hint) is Annotated:
        base, *extras = typing.get_args(hint)
        return next((e for e in extras if isinstance(e, Bound)), None), base
    return None, hint


def is_seed(hint: Any) -> bool:
    """Whether an annotation is that of a `Seed`."""
    return bool(hint == Seed)


def is_sequence(hint: Any) -> bool:
    """Whether an annotation is that of a list, or of an optional list."""
    hint = _strip(hint)[1]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        return all(map(is_sequence, options))
    return typing.get_origin(hint) in (tuple, list)


def _union(options: tuple[Any, ...], raw: Any, location: Location) -> Any:
    if raw is None and type(None) in options:
        return None
    errors = []
    for option in options:
        if option is type(None):
            continue
        try:
            return value(option, raw, location)
        except ConfigError as error:
            errors.append(error)
    # An error inside of a value says more than that the value fits no option.
    inner = [error for error in errors if str(error.location) != str(location)]
    if len(errors) == 1 or len(inner) == 1:
        raise (inner or errors)[0]
    raise ConfigError(location, f"is {raw!r}", " or ".join(describe(o) for o in options))


def _scalar(kind: Any, bound: Bound | None, raw: Any, location: Location) -> Any:
    number, remark, limit = raw, "", ""
    if kind is float and isinstance(raw, int | float) and not isinstance(raw, bool):
        try:
            raw = number = float(raw)
        except OverflowError:
            number = math.inf if raw > 0 else -math.inf
    elif kind is int and isinstance(raw, float) and raw.is_integer():
        raw = number = int(raw)
    interval = Bound() if bound is None and kind is float else bound
    if type(number) is not kind:
        remark = f" ({type(raw).__name__})"
    elif interval is None or interval.admits(number):
        return number
    elif number > interval.limit:
        limit = f" and <= {_text(interval.limit)}"
    allowed = describe(kind if bound is None else Annotated[kind, bound])
    raise ConfigError(location, f"is {raw!r}{remark}", allowed + limit)


TYPE_NAMES = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}


def describe(hint: Any) -> str:
    """Describe the values that an annotation allows: ``a number > 0``, ``one of sgd, adamw``."""
    bound, hint = _strip(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return "a name, or a name with its keys"
    if origin in (typing.Union, types.UnionType):
        return " or ".join("nothing" if a is type(None) else describe(a) for a in args)
    if origin is Literal:
        return "one of " * (len(args) > 1) + ", ".join(str(a) for a in args)
    if origin in (tuple, list):
        return f"a list, each {describe(args[0])}"
    name = TYPE_NAMES.get(hint, "a mapping (key: value)")
    return f"{name} {bound}" if bound else name
