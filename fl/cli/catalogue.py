"""Lists of the components that a config can name: methods, models, data sets and other kinds.

The texts of their keys are read from the docstrings of the code that declares them. A docstring
describes its keys in a section of attributes or arguments, with one entry for each key, whose text
can continue on indented lines. A method's docstring has one paragraph on its family, which a
plugin's may lack::

    Family: personal layers. Exchanged: body. Local: head. Key: `layers`.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from fl.base import fields, registry
from fl.base.errors import Location, unknown_name
from fl.base.registry import Component, Documentation
from fl.cli.commands import add_config_option, aligned, say
from fl.plan import config

ORIGINS = BY_HAND, USER, DOWNLOADED, READY = ("by hand", "your own", "downloaded", "ready")
"""Where files of a data set come from; those that ask most of a user come first."""

SECTION = re.compile(r"^(?:Attributes|Args):\n((?:(?: {4}.*)?(?:\n|$))+)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)

FAMILIES = {
    "reference": "what others are compared with or start from",
    "aggregation": "how the server weighs and moves the mean of what clients send",
    "server samples": "the server has samples of its own",
    "drift": "clients' steps are corrected or held near the shared model",
    "sharpness": "clients' gradients are those of a worse point nearby",
    "classifier": "the head or the loss is made fair to classes that a client lacks",
    "distillation": "models learn from each other's outputs",
    "class means": "clients exchange mean features by class",
    "features": "inputs or features are made alike over clients",
    "personal layers": "a part of the network stays with the client",
    "personal model": "each client has a model beside the shared one",
    "mixture of clients": "each client gets its own mixture of models",
    "stored model": "begins with the model of another entry, which it personalises or calibrates",
}
"""Common trait of the methods of each family, in the order of the page of methods."""

FAMILY = re.compile(
    r"Family: (?P<family>[^.]+)\. Exchanged: (?P<exchanged>[^.]+)\. Local: (?P<local>[^.]+)\."
    r" Key: `?(?P<key>[^.`]+)`?\."
)

WIDTH = 100
TOPIC_WIDTH = 60
NO_TEXT = "no description: its docstring does not explain this key"


KIND_BY_COMMAND = {command: kind for kind, command in registry.COMMAND_BY_KIND.items()}
"""Kind of component by the command that lists it."""


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command ``name``, which lists the components of a kind."""
    add_config_option(parser)
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="show its keys: meaning, allowed values, default"
    )
    if name == "methods":
        parser.add_argument("--family", help="list only methods of a family: 'personal layers'")
    parser.set_defaults(run=_list, kind=KIND_BY_COMMAND[name], family=None)


def _list(parsed: argparse.Namespace) -> None:
    if (parsed.config / "config.yaml").exists():
        config.read_settings(parsed.config)  # for its plugins
    if parsed.name:
        lines = details(parsed.kind, parsed.name)
    elif parsed.kind == "data set":
        lines = dataset_table()
    else:
        lines = listing(parsed.kind, parsed.family)
    for line in lines:
        say(line)


def key_texts(target: type | Callable[..., Any]) -> dict[str, str]:
    """Return the text of each key in the docstring of a dataclass or function, by key."""
    return parse_key_texts(inspect.getdoc(target) or "", fields.fields(target))


def summary_of(target: type | Callable[..., Any]) -> str:
    """Return the first paragraph of a docstring; empty if it begins with a section."""
    first = re.split(r"\n\s*\n", inspect.getdoc(target) or "")[0]
    return "" if first.startswith(("Attributes:", "Args:")) else " ".join(first.split())


def parse_key_texts(docstring: str, keys: Iterable[str]) -> dict[str, str]:
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


def listing(kind: str, family: str | None = None) -> Iterator[str]:
    """Return a summary and a citation for each component of a kind; imports none of them.

    Args:
        kind: The kind.
        family: For methods, only those of this family; None: all.
    """
    documentation = registry.list_documentation(kind)
    if family is not None:
        documentation = members(family, documentation)
    width = max((len(component.name) for component in documentation), default=0)
    for component in documentation:
        indent = " " * (width + 2)
        [first, *following] = _wrapped(component.summary, indent)
        yield from [f"{component.name:{width}}  {first.lstrip()}", *following]
        yield from _wrapped(component.citation, indent)


def dataset_table() -> Iterator[str]:
    """Return a table of all data sets, with the sizes that they have by default."""
    heads = ("data set", "samples", "shape", "classes", "clients", "files", "")
    rows = [_dataset_row(component) for component in registry.components("data set")]
    yield from aligned([heads, *rows])
    yield ""
    yield "clients: natural ones, such as writers; `fedloom partitions` lists other ways to split"
    yield (
        "files: ready without a download; downloaded when a study needs them; by hand, as "
        "`fedloom datasets NAME` says; your own"
    )


def origin_of_files(component: Component) -> str:
    """Return where the files of a data set come from, one of `ORIGINS`."""
    keys = fields.fields(component.target)
    if any(field.default is fields.REQUIRED for field in keys.values()):
        return USER
    schemes = {source.url and source.url.partition(":")[0] for source in component.target().sources}
    if None in schemes:
        return BY_HAND
    return DOWNLOADED if schemes - {"package"} else READY


def _dataset_row(component: Component) -> tuple[str, ...]:
    """Return the cells of a data set in the table; without numbers if it reads the user's files."""
    from fl.data.dataset import check_dataset_class  # Other lists do not need what it imports.

    topic = textwrap.shorten(component.summary, TOPIC_WIDTH, placeholder=" ...").rstrip(".:")
    files = origin_of_files(component)
    if files == USER:
        return (component.name, *[""] * 4, files, topic)
    dataset = component.target()
    check_dataset_class(dataset, component.name)
    is_regression = getattr(dataset, "task", "") == "regression"
    return (
        component.name,
        "" if dataset.size is None else f"{dataset.size:,}",
        " x ".join(map(str, dataset.shape)),
        "target" if is_regression else str(dataset.classes),
        "" if dataset.natural_clients is None else f"{dataset.natural_clients:,}",
        files,
        topic,
    )


def details(kind: str, name: str) -> Iterator[str]:
    """Return a component's summary, citation and notes, and every key that configs can set."""
    component = registry.find_declaration(kind, name, Location("the command line"))
    yield f"{component.name}: {component.summary}"
    if component.citation:
        yield from ("", *_wrapped(component.citation))
    if component.notes:
        yield from ("", *component.notes.splitlines())
    if summary := summary_of(component.target):
        yield from ("", *_wrapped(summary))
    keys = fields.fields(component.target)
    yield ""
    yield "keys:" if keys else "keys: none"
    texts = text_by_key(component)
    for key, field in keys.items():
        yield from _wrapped(f"{key}: {fields.describe(field.hint)}; {default(field)}", "  ")
        yield from _wrapped(texts.get(key, NO_TEXT), "      ")
    if defaults := getattr(component.target, "training", None):
        pairs = ", ".join(f"{key} {value}" for key, value in defaults.items())
        yield from ("", f"training defaults of this method: {pairs}")
    yield from ("", f"file: {_relative(component.file)}")


def text_by_key(component: Component) -> dict[str, str]:
    """Return the texts of a component's keys; `CommonKeys` has those that all schemes share."""
    by_key = key_texts(component.target)
    if inspect.isfunction(component.target):
        from fl.data.scheme import CommonKeys  # It imports pandas, which a list does not need.

        shared = {field.name for field in dataclass_fields(CommonKeys)} & set(
            fields.fields(component.target)
        )
        common = key_texts(CommonKeys)
        by_key = {key: common[key] for key in shared} | by_key
    return by_key


def default(field: fields.Field) -> str:
    """Return a key's default in words."""
    if field.default is fields.REQUIRED:
        return "required"
    return f"default: {_value(field.default)}"


def _value(value: Any) -> str:
    """Return a value as a config contains it."""
    return value if isinstance(value, str) and value else json.dumps(value)


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _relative(file: Path) -> str:
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)


@dataclass(frozen=True)
class Profile:
    """A method's family and what it exchanges, from the docstring of its file.

    Attributes:
        family: Family, a key of `FAMILIES`.
        exchanged: What a client receives and sends in a round.
        local: What stays with the client from round to round.
        key: The config key that matters most; `none` if it has none.
    """

    family: str
    exchanged: str
    local: str
    key: str


def profile_of(component: Documentation) -> Profile | None:
    """Return a method's profile; None if its docstring has none."""
    match = FAMILY.search(" ".join(component.notes.split()))
    return Profile(**match.groupdict()) if match else None


def members(family: str, components: Iterable[Documentation]) -> list[Documentation]:
    """Return the components of a family.

    Raises:
        FedloomError: If there is no family of that name.
    """
    if family not in FAMILIES:
        raise unknown_name(Location("--family"), "family", family, FAMILIES)
    profiles = [(component, profile_of(component)) for component in components]
    return [component for component, profile in profiles if profile and profile.family == family]
