"""Listings of what a config can name: methods, models, data sets and the other kinds of the
registry.
"""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import fields as declared
from pathlib import Path
from typing import Any

from fl.base import fields, key_texts, registry
from fl.base.errors import Location
from fl.base.registry import Component

WIDTH = 100
UNSAID = "what it means is not said in its docstring"


def listing(kind: str) -> Iterator[str]:
    """A line and a citation for each entry of a kind; imports none of them."""
    entries = registry.list_documentation(kind)
    width = max(len(said.name) for said in entries)
    for said in entries:
        indent = " " * (width + 2)
        [first, *more] = _filled(said.summary, indent)
        yield from [f"{said.name:{width}}  {first.lstrip()}", *more]
        yield from _filled(said.citation, indent)


def details(kind: str, name: str) -> Iterator[str]:
    """An entry's summary, citation and notes, and every key that configs can set."""
    entry = registry.find_declaration(kind, name, Location("NAME"))
    yield f"{entry.name}: {entry.summary}"
    if entry.citation:
        yield from ("", *_filled(entry.citation))
    if entry.notes:
        yield from ("", *entry.notes.splitlines())
    if about := key_texts.summary_of(entry.target):
        yield from ("", *_filled(about))
    keys = fields.fields(entry.target)
    yield ""
    yield "keys:" if keys else "keys: none"
    said = keys_of(entry)
    for key, field in keys.items():
        yield from _filled(f"{key}: {fields.describe(field.hint)}; {default(field)}", "  ")
        yield from _filled(said.get(key, UNSAID), "      ")
    if instead := getattr(entry.target, "training", None):
        told = ", ".join(f"{key} {value}" for key, value in instead.items())
        yield from ("", f"training, where a study says nothing else: {told}")
    yield from ("", f"file: {_short(entry.file)}")


def keys_of(entry: Component) -> dict[str, str]:
    """The meanings of an entry's keys; those of the keys that all schemes share are in `Common`."""
    by_key = key_texts.key_texts(entry.target)
    if inspect.isfunction(entry.target):
        from fl.data.scheme import Common  # imports pandas, which a listing does without

        shared = {field.name for field in declared(Common)} & set(fields.fields(entry.target))
        common = key_texts.key_texts(Common)
        by_key = {key: common[key] for key in shared} | by_key
    return by_key


def default(field: fields.Field) -> str:
    """A key's default, in a user's words."""
    if field.default is fields.REQUIRED:
        return "has to be given"
    return f"default: {_value(field.default)}"


def _value(value: Any) -> str:
    """A value as a config writes it."""
    return value if isinstance(value, str) and value else json.dumps(value)


def _filled(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _short(file: Path) -> str:
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)
