"""The pages of ``docs/`` that are generated from the docstrings and the field declarations of the
code. ``python -m tools.reference`` writes them, and a test holds them to the code.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from fl.api.training import Training
from fl.base import fields, plugins, registry
from fl.base.registry import Component, Lora, ModelKeys
from fl.cli import catalogue
from fl.cli import studies as overview
from fl.data.scheme import CommonKeys
from fl.plan.config import Best, Cells, Execution, Node, Search, Settings, Study
from fl.plan.track import Budget, Clients, Draws, Family, TrackKeys
from tools import api_reference, method_costs, round_trace

ROOT = plugins.FL.parent
ORIGIN = "*Generated from the code by `python -m tools.reference`: edit the docstrings there.*"

OTHERS = {
    "model": "Models",
    "partition scheme": "Partitions",
    "term": "Terms of the loss",
    "alteration": "Alterations of features",
    "upload filter": "Upload filters",
    "aggregation": "Aggregations",
    "devices": "Devices of clients",
    "selection": "Selections of clients",
    "asynchronous server": "Asynchronous servers",
    "analysis": "Analyses",
}
"""The kinds that share the page of the library, and their headings."""

RECORDS = {
    Settings: "config.yaml",
    Execution: "execution",
    Node: "nodes",
    Study: "studies/NAME.yaml",
    Training: "training",
    CommonKeys: "partitions",
    ModelKeys: "models",
    Lora: "adapter: lora",
    Cells: "published",
    Best: "best",
    Search: "search",
    TrackKeys: "tracks/NAME.yaml",
    Clients: "clients of a track",
    Draws: "draws of a track",
    Family: "families of a track",
    Budget: "budgets of a track",
}
"""The records that config files fill in, and their headings on the page of keys."""


def methods() -> str:
    """The page of all methods."""
    about = (
        "`fedloom methods` lists them, `fedloom methods NAME` says the same as this page. "
        "[A table](method-costs.md) says what each sends, keeps and computes; "
        "[another page](../guide/peers.md), where the code of others differs from the papers."
    )
    return _page("Methods", about, chain(_families(), _kind("method", "##")))


def _families() -> Iterator[str]:
    """A table of each family: what its methods exchange, keep and cost."""
    yield "## Families"
    yield (
        "Down, up and operations are a client's in a round, relative to FedAvg's, "
        "[measured](method-costs.md) on a small convolutional network. *Body* is the network "
        "without its head, the layer that makes the outputs. `fedloom methods --family FAMILY` "
        "lists one family."
    )
    components, costs = registry.list_documentation("method"), method_costs.costs()
    built_in = [each for each in components if each.file.is_relative_to(plugins.FL)]
    for family, about in catalogue.FAMILIES.items():
        yield f"**{family}**: {about}"
        rows = [
            "| method | exchanged | stays with the client | first key | down | up | operations |",
            "|---|---|---|---|---:|---:|---:|",
        ]
        for member in catalogue.members(family, built_in):
            profile, cost = catalogue.profile_of(member), costs[member.name]
            assert profile is not None
            key = "" if profile.key == "none" else f"`{profile.key}`"
            cells = [f"[`{member.name}`](#{member.name})", profile.exchanged, profile.local, key]
            rows.append(f"| {' | '.join([*cells, cost.down, cost.up, cost.operations])} |")
        yield "\n".join(rows)


def datasets() -> str:
    """The page of all data sets."""
    about = (
        "`fedloom datasets` lists them. [The guide](../../config/README.md#raw-files) says how raw "
        "files are fetched, and which of them only a person can get."
    )
    return _page("Data sets", about, _kind("data set", "##"))


def library() -> str:
    """The page of the rest of what a study can name."""
    about = "What a study can name beside [methods](methods.md) and [data sets](datasets.md)."
    return _page(
        "Models, partitions, terms, alterations, upload filters, analyses", about, _library()
    )


def _library() -> Iterator[str]:
    for kind, heading in OTHERS.items():
        yield f"## {heading}"
        yield from _kind(kind, "###")


def config() -> str:
    """The page of all keys of the config files."""
    about = (
        "Every key of the files in `config/`, with what is allowed and its default. "
        "[The guide](../../config/README.md) shows how they are used."
    )
    return _page("Keys of the config files", about, _records())


def _records() -> Iterator[str]:
    for record, heading in RECORDS.items():
        declared = fields.fields(record)
        yield f"## {heading}"
        yield _keys(declared, catalogue.key_texts(record))


def api() -> str:
    """The page of what authors of methods, terms, alterations and models import."""
    about = (
        "`from fl.api import Method, recipe`: a method imports no other module of the pipeline. "
        "[The training core](../guide/training-core.md) says how these work together."
    )
    start = (ROOT / "tools" / "front_door.md").read_text(encoding="utf-8").strip()
    return _page("fl.api", about, chain([start], api_reference.blocks()))


def python() -> str:
    """The page of what notebooks and scripts import."""
    about = (
        "`import fl`: studies written in Python, as [a notebook](../guide/notebook.ipynb) shows. "
        "Keys are [those of a study](config.md). Runs go into the same store, so "
        "`fedloom store gc` lists runs that only a notebook needed."
    )
    return _page("fl", about, api_reference.python())


def studies() -> str:
    """The page of all studies."""
    about = (
        "`fedloom studies [PAPER]` lists the same; with `--stored` also how much of each is in "
        "your store, and how long the whole takes where runs like it are there. A study's report "
        "sets its published cells beside what was measured. Files that are ready or downloaded "
        "ask nothing of you; of those by hand `fedloom datasets NAME` says where they go."
    )
    config_folder = ROOT / "config"
    found = overview.overviews(config_folder)
    tables = overview.markdown_tables(found, config_folder, "../../config")
    return _page("Studies", about, tables)


PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/methods.md": methods,
    "docs/reference/datasets.md": datasets,
    "docs/reference/library.md": library,
    "docs/reference/config.md": config,
    "docs/reference/api.md": api,
    "docs/reference/a-round-traced.md": round_trace.page,
    "docs/reference/python.md": python,
    "docs/reference/studies.md": studies,
}
"""By path from the root of the repository, the function that gives a page's text."""


def _page(title: str, about: str, blocks: Iterator[str]) -> str:
    return "\n\n".join([f"# {title}", ORIGIN, about, *filter(None, blocks)]) + "\n"


def _kind(kind: str, level: str) -> Iterator[str]:
    """A list of all entries of a kind, then a section on each of them."""
    entries = [
        entry for entry in registry.components(kind) if entry.file.is_relative_to(plugins.FL)
    ]
    yield "\n".join(f"- [`{entry.name}`](#{entry.name}): {entry.summary}" for entry in entries)
    for entry in entries:
        yield f"{level} {entry.name}"
        yield from _section(entry)


def _section(entry: Component) -> Iterator[str]:
    yield entry.summary
    if entry.citation:
        yield _linked(entry.citation)
    if entry.notes:
        yield entry.notes
    if about := catalogue.summary_of(entry.target):
        yield about
    declared = fields.fields(entry.target)
    common = fields.fields(CommonKeys).keys()
    shared = entry.kind == "partition scheme" and common <= declared.keys()
    own_keys = {key: field for key, field in declared.items() if not (shared and key in common)}
    yield _keys(own_keys, catalogue.text_by_key(entry))
    if shared:
        yield "And the keys that [all partitions share](config.md#partitions)."
    if by_hand := [source for source in getattr(entry.target, "sources", ()) if not source.url]:
        files = "\n".join(f"- `{source.name}`: {source.note}" for source in by_hand)
        yield f"Files that only a person can get:\n\n{files}"


def _keys(declared: dict[str, fields.Field], said: dict[str, str]) -> str:
    """A list of keys: what is allowed, the default, the meaning."""
    lines = []
    for key, field in declared.items():
        instead = "default: its own defaults" if dataclasses.is_dataclass(field.default) else ""
        allowed = f"{fields.describe(field.hint)}; {instead or catalogue.default(field)}"
        lines.append(f"- `{key}` ({allowed}): {said.get(key, catalogue.NO_TEXT)}")
    return "\n".join(lines) or "No keys."


def _linked(citation: str) -> str:
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", citation)


def write(root: Path = ROOT) -> None:
    """Write every page below ``root``."""
    for name, page in PAGES.items():
        (root / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    argparse.ArgumentParser("python -m tools.reference", description=__doc__).parse_args()
    write()
