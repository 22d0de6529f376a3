"""What config keys mean, as the docstring of the code that takes them says it.

A docstring describes a key as ``key: what it means``, at its beginning, on a line of its own or
after the end of a sentence; several keys share a meaning as ``one, other: ...``, and the next key,
or an empty line, ends it::

    hidden: widths of the hidden layers, each followed by ReLU. alpha, beta: standard deviations.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

from fl.base import fields


def meanings(target: type | Callable[..., Any]) -> dict[str, str]:
    """By key, what the docstring of a dataclass or function says of it; unknown ones are left out.

    Lines are joined, and the full stop or semicolon at the end of a meaning is dropped.
    """
    return parse(inspect.getdoc(target) or "", fields.fields(target))


def about(target: type | Callable[..., Any]) -> str:
    """What the docstring says before it describes keys, in its first paragraph; maybe nothing."""
    first = re.split(r"\n\s*\n", inspect.getdoc(target) or "")[0]
    return "" if parse(first, fields.fields(target)) else " ".join(first.split())


def parse(text: str, keys: Iterable[str]) -> dict[str, str]:
    """The meanings in a docstring that describes ``keys``; the first one of a key counts."""
    any_key = "|".join(re.escape(key) for key in sorted(keys, key=len, reverse=True))
    if not any_key:
        return {}
    name = rf"(?:{any_key}|`(?:{any_key})`|``(?:{any_key})``)"
    begins = re.compile(rf"(?:^|(?<=[.;)])\s+|\n\s*)({name}(?:,\s+{name})*):\s+")
    by_key: dict[str, str] = {}
    for paragraph in re.split(r"\n\s*\n", text):
        _, *parts = begins.split(paragraph)
        for names, meaning in zip(parts[::2], parts[1::2], strict=True):
            for key in re.findall(rf"\b(?:{any_key})\b", names):
                by_key.setdefault(key, " ".join(meaning.split()).rstrip(".;"))
    return by_key
