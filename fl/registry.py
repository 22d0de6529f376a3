"""What there is: methods, models, data sets and partition schemes, one file each.

A file's name is its name (``two_layer.py`` is ``two-layer``). Its docstring's first line says what
it is, the second paragraph is its citation. It defines one dataclass with a ``build`` or ``read``
method, or, for a partition scheme, one function named as the file; their annotated fields are the
config keys.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl import fields
from fl.errors import Where, unknown

ROOT = Path(__file__).resolve().parent

PACKAGES = {
    "method": "fl.methods",
    "model": "fl.models",
    "data set": "fl.data.datasets",
    "partition scheme": "fl.data.schemes",
}


@dataclass(frozen=True)
class Entry:
    """One thing that a config can name."""

    kind: str
    name: str
    file: Path
    target: Any
    summary: str
    citation: str

    def parse(self, values: Mapping[str, Any] | None, where: Where) -> dict[str, Any]:
        """Its config keys, checked and with defaults; see `fl.fields.parse`."""
        return fields.parse(self.target, values, where)

    def make(self, settled: Mapping[str, Any]) -> Any:
        """The instance for values that `parse` returned, or that a spec brought back."""
        typed = {
            name: fields.value(field.hint, settled[name], Where(self.name) / name)
            for name, field in fields.fields(self.target).items()
        }
        return self.target(**typed)


def names(kind: str) -> list[str]:
    """All names of a kind, without importing anything."""
    return sorted(path.stem.replace("_", "-") for path in _folder(kind).glob("[a-z]*.py"))


def find(kind: str, name: str, where: Where) -> Entry:
    """The entry of that name, or a `ConfigError` at ``where`` with the nearest one suggested."""
    if name not in names(kind):
        raise unknown(where, kind, name, names(kind))
    module = importlib.import_module(f"{PACKAGES[kind]}.{name.replace('-', '_')}")
    paragraphs = (inspect.getdoc(module) or "").split("\n\n")
    return Entry(
        kind=kind,
        name=name,
        file=Path(inspect.getfile(module)),
        target=_target(module),
        summary=" ".join(paragraphs[0].split()),
        citation=" ".join(paragraphs[1].split()) if len(paragraphs) > 1 else "",
    )


def entries(kind: str) -> list[Entry]:
    """All entries of a kind; imports them."""
    return [find(kind, name, Where("")) for name in names(kind)]


def _folder(kind: str) -> Path:
    return ROOT.joinpath(*PACKAGES[kind].split(".")[1:])


def _target(module: Any) -> Any:
    function = getattr(module, module.__name__.rpartition(".")[2], None)
    if inspect.isfunction(function):
        return function
    [target] = [
        found
        for found in vars(module).values()
        if dataclasses.is_dataclass(found)
        and found.__module__ == module.__name__
        and (hasattr(found, "build") or hasattr(found, "read"))
    ]
    return target
