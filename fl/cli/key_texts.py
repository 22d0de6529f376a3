"""Texts of config keys, read from the docstrings of the code that declares them.

A docstring describes its keys in a section ``Attributes:`` or ``Args:``, one entry for each key::

Attributes:
        hidden: Widths of the hidden layers, each followed by ReLU.
        alpha: Standard deviation of the weights, whose text can
            continue on indented lines.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

from fl.base import fields

SECTION = re.compile(r"^(?:Attributes|Args):\n((?:(?: {4}.*)?(?:\n|$))+)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def key_texts(target: type | Callable[..., Any]) -> dict[str, str]:
    """Return the text of each key in the docstring of a dataclass or function, by key."""
    return parse(inspect.getdoc(target) or "", fields.fields(target))


def summary_of(target: type | Callable[..., Any]) -> str:
    """Return the first paragraph of a docstring; empty if it begins with a section."""
    first = re.split(r"\n\s*\n", inspect.getdoc(target) or "")[0]
    return "" if first.startswith(("Attributes:", "Args:")) else " ".join(first.split())


def parse(docstring: str, keys: Iterable[str]) -> dict[str, str]:
    """Return the texts of ``keys`` in the sections of a docstring.

    Lines are joined, and the full stop at the end is dropped.

    Args:
        docstring: The docstring, without indentation of its own.
        keys: The keys; other entries are ignored.
    """
    entries = {
        name: " ".join(text.split()).rstrip(".")
        for section in SECTION.findall(docstring)
        for name, text in ENTRY.findall(section)
    }
    return {key: entries[key] for key in keys if key in entries}
