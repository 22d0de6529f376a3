"""Texts of config keys, read from the docstrings of the code that declares them.

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


def key_texts(target: type | Callable[..., Any]) -> dict[str, str]:
    """Return the text of each key in the docstring of a dataclass or function.

    Lines are joined, and the full stop or semicolon at the end of a meaning is dropped.
    """
    return parse(inspect.getdoc(target) or "", fields.fields(target))


def summary_of(target: type | Callable[..., Any]) -> str:
    """Return the first paragraph of a docstring if it describes no keys, else an empty text."""
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
        _, *pieces = begins.split(paragraph)
        for names, meaning in zip(pieces[::2], pieces[1::2], strict=True):
            for key in re.findall(rf"\b(?:{any_key})\b", names):
                by_key.setdefault(key, " ".join(meaning.split()).rstrip(".;"))
    return by_key
