"""YAML as config files may write it: every value has one meaning, and no file unfolds without end.

Refused are numbers that YAML 1.1 and 1.2 read differently (``010``, ``1:30``, ``1_000``), so that
no number silently becomes another one; numbers beyond 64 bits; text that no file can hold; and
nesting or aliases without end. ``1e-3`` is a number, a date is text, and a key that occurs twice in
a mapping is an error.

ruamel.yaml (0.19) was tried in place of PyYAML: it reads ``1e-3`` and refuses a second key, but
takes ``010`` as 10, ``1_000`` as 1000, ``1e999`` as infinity and a date as a date, so that the
other checks here would stay, for one more package on machines that only train.
"""

from __future__ import annotations

import copy
import math
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from fl.base.errors import ConfigError, Location

DEEPEST = 50
"""Mappings and lists within each other at most; a config needs six."""
REPEATED = 100_000
"""Values at most that aliases add to those that are written down."""
DIGITS = 100
"""Digits of a whole number at most, so that whoever refuses it can still name it."""

CORE = "tag:yaml.org,2002:"
SCALARS = {CORE + name for name in ("str", "int", "float", "bool", "null", "merge")}
DROPPED = {CORE + name for name in ("timestamp", "value")}


class _Loader(yaml.SafeLoader):
    """PyYAML's, without dates and with ``1e-3`` and ``0o17``."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # PyYAML's own way
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in DROPPED]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    f"{CORE}float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(f"{CORE}int", re.compile(r"^[-+]?0o[0-7]+$"), list("-+0"))

AMBIGUOUS = (
    (re.compile(r"[-+]?0[\d_]+"), "starts with 0, which is base 8 to some readers"),
    (re.compile(r"[-+]?\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?"), "is a time to some readers, base 60"),
    (re.compile(r"[-+]?[\d_]*\d_[\d_]*(\.[\d_]*)?"), "is a number to some readers, text to others"),
    (re.compile(r"[-+]?\d[\d_]*\.[\d_]*_[\d_]*"), "is a number to some readers, text to others"),
    (re.compile(r"[-+]?0b[01_]+"), "is base 2 to some readers, text to others"),
)


class _Refused(Exception):
    def __init__(self, node: yaml.Node, problem: str, allowed: str) -> None:
        super().__init__(problem)
        self.line, self.problem, self.allowed = node.start_mark.line + 1, problem, allowed


def read(path: Path, location: Location) -> Any:
    """Return the content of a file; None if it is empty.

    Raises:
        ConfigError: At ``location``, for a file that cannot be read or is not allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(location, "does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(location, f"cannot be read: {error}") from None
    return parse(text, location)


def parse(text: str, location: Location) -> Any:
    """Return the content of a text; None if it is empty.

    Raises:
        ConfigError: At ``location``, for a text that is not allowed.
    """
    try:
        return _load(text)
    except _Refused as error:
        raise ConfigError(location, f"line {error.line}: {error.problem}", error.allowed) from None
    except yaml.YAMLError as error:
        problem = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        raise ConfigError(location, f"is not valid YAML: {problem}") from None
    except RecursionError:
        problem = "has lists or mappings too deep within each other"
        raise ConfigError(location, problem, f"{DEEPEST} at most") from None


def _load(text: str) -> Any:
    return copy.deepcopy(_loaded(text))


@lru_cache(64)
def _loaded(text: str) -> Any:
    """Return the content of a text; cached, as the same files are read for every study."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _Check(loader).check(node)
        return loader.construct_document(node)
    finally:
        loader.dispose()


NodeKey = tuple[str, int, int]
"""Type, beginning and end of a node; an alias is the node to which it leads."""


def _node_key(node: yaml.Node) -> NodeKey:
    return type(node).__name__, node.start_mark.index, node.end_mark.index


class _Check:
    """Checks the nodes of a file before any value is made of them."""

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader
        self._sizes: dict[NodeKey, int] = {}
        self._ancestors: list[NodeKey] = []

    def check(self, node: yaml.Node) -> int:
        """Return how many values a node stands for; raise `_Refused` or a YAML error."""
        key = _node_key(node)
        if key in self._sizes:
            return self._sizes[key]
        if key in self._ancestors:
            raise _Refused(node, "contains itself", "an alias of what is complete before it")
        if len(self._ancestors) == DEEPEST:
            problem = "lists or mappings are too deep within each other"
            raise _Refused(node, problem, f"{DEEPEST} at most")
        self._ancestors.append(key)
        size = 1 + sum(map(self.check, self._inner_nodes(node)))
        self._ancestors.pop()
        self._sizes[key] = size
        if size - len(self._sizes) > REPEATED:
            raise _Refused(node, "aliases repeat too much", f"{REPEATED:,} values at most")
        return size

    def _inner_nodes(self, node: yaml.Node) -> list[yaml.Node]:
        if isinstance(node, yaml.ScalarNode):
            self._check_scalar(node)
            return []
        kind = "map" if isinstance(node, yaml.MappingNode) else "seq"
        if node.tag != CORE + kind:
            raise _tagged(node)
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node)
            return [inner for pair in node.value for inner in pair]
        return list(node.value)

    def _check_keys(self, node: yaml.MappingNode) -> None:
        earlier = set()
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem=f"a key is not text (line {line})")
            if (key.tag, key.value) in earlier:
                problem = f"the key {key.value!r} is a duplicate (line {line})"
                raise yaml.MarkedYAMLError(problem=problem)
            earlier.add((key.tag, key.value))

    def _check_scalar(self, node: yaml.ScalarNode) -> None:
        text, tag = node.value, node.tag
        if tag not in SCALARS:
            raise _tagged(node)
        if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
            problem = f"{_short(text)!r} has a character that no file can hold"
            raise _Refused(node, problem, "whole characters, and not the one with number 0")
        if node.style is None:
            _check_plain(node)
        implicit_tag = self._loader.resolve(yaml.ScalarNode, text, (True, False))
        if tag not in (implicit_tag, f"{CORE}str", f"{CORE}float"):
            raise _Refused(node, f"{_short(text)!r} is no {tag.removeprefix(CORE)}", "no tag")
        if tag in (f"{CORE}int", f"{CORE}float"):
            _check_number(node, implicit_tag)


def _tagged(node: yaml.Node) -> yaml.YAMLError:
    line = node.start_mark.line + 1
    return yaml.MarkedYAMLError(problem=f"the tag {node.tag} is not known here (line {line})")


def _check_plain(node: yaml.ScalarNode) -> None:
    for pattern, problem in AMBIGUOUS:
        if pattern.fullmatch(node.value):
            shown = _short(node.value)
            raise _Refused(node, f"{shown} {problem}", f'{_suggestion(shown)}, text as "{shown}"')


def _suggestion(shown: str) -> str:
    """Return how to write the number that may have been meant."""
    sign, digits = shown[: len(shown) - len(shown.lstrip("+-"))], shown.lstrip("+-0") or "0"
    if not digits.isdigit():
        return "a number in digits, as 90 or 0.5"
    base8 = "" if {*digits} & {*"89"} else f" (base 8: {sign}0o{digits})"
    return f"the number as {sign}{digits}{base8}"


def _check_number(node: yaml.ScalarNode, implicit_tag: str) -> None:
    text = node.value
    if implicit_tag == f"{CORE}int" and len(text) <= DIGITS:
        return
    problem = f"{_short(text)} ({len(text)} characters) is no number that fits"
    if implicit_tag not in (f"{CORE}int", f"{CORE}float") or len(text) > DIGITS:
        raise _Refused(node, problem, "a number of 64 bits")
    if "." in text and text.lower().strip("+-") in (".inf", ".nan"):
        return
    value, digits = float(text.replace("_", "")), re.split("[eE]", text)[0]
    if math.isinf(value) or (value == 0 and digits.strip("+-0.")):
        raise _Refused(node, problem, "a number of 64 bits")


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:30]}..."
