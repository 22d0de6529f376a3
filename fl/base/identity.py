"""The identity of a run: its spec, the version of the code that decides its numbers, its data.

Code has roots: what all runs share, what all data share, and each entry of the library. A root has
a version in ``numbers.json``, beside the hash that its code had when the golden worlds last agreed
with that version (`make golden`). Where the code at hand has that hash, a run is named by the
version; where it has not (an edit in progress, a plugin), by the hash.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fl.base import plugins, registry, syntax
from fl.base.digest import digest as digest
from fl.base.errors import Location
from fl.base.files import parse_json

ROOT = plugins.FL
NUMBERS = ROOT / "numbers.json"

CORE, DATA = "core", "data"
ROOMS = {CORE: ("base", "pytorch", "api", "blocks", "engine"), DATA: ("base", "data")}
"""The rooms whose files, but for those of entries, all runs share, and all data.

These are two roots, as an edit of the engine must not prepare a data set again, which may take
hours. A run has the hash of both, as the ids of its data are in its name. What no run and no data
set imports (``plan``, ``store``, ``train``, ``report``, ``cli``) decides no number.
"""

IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t][^\n(]*(?:\([^)]*\))?", re.MULTILINE)


class Numbers(NamedTuple):
    """What ``numbers.json`` says.

    Attributes:
        versions: By root, and by setting (see `settings`) whose numbers alone have changed.
        hashes: By root, the hash of its code when it was certified.
        files: By file of ``fl``, a hash of its bytes and one of its syntax, so that a file that
            nobody touched is not parsed.
    """

    versions: dict[str, int]
    hashes: dict[str, str]
    files: dict[str, tuple[str, str]]


def point(spec: Mapping[str, Any], code: Mapping[str, str], defaults: Sequence[str] = ()) -> str:
    """The id of a point: a hash of its spec without the seed, and of its code and data.

    defaults: Keys of the spec that have their defaults (`fl.plan.run_spec`). They are left
        out, so that a key that a later version brings renames no run.
    """
    return digest([_without(spec, ["seed", *defaults]), dict(code)])


def _without(spec: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """A spec without some keys: ``seed``, ``training.momentum``, ``terms.0.mu``."""
    inner: dict[str, list[str]] = {}
    for key in keys:
        first, _, rest = key.partition(".")
        inner.setdefault(first, []).append(rest)
    return {
        key: _pruned(value, inner[key]) if key in inner else value
        for key, value in spec.items()
        if "" not in inner.get(key, ())
    }


def _pruned(value: Any, keys: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        return _without(value, keys)
    pruned = _without({str(place): item for place, item in enumerate(value)}, keys)
    return list(pruned.values())


def run(point: str, seed: int) -> str:
    """The id of a point's run."""
    return digest([point, seed])


def code(root: str) -> str:
    """What stands for a root in a name: its version ``"1"`` if it is certified, else its hash.

    Args:
        root: `CORE`, `DATA`, or an entry, see `entry`.
    """
    return _code(root, tuple(plugins.roots().items()))


LABELS = {"upload filter": "stage"}
"""Kinds whose roots have another label than the kind: roots stand in ``numbers.json`` and in the
names of runs, so they keep the label of earlier versions.
"""


def entry(kind: str, name: str) -> str:
    """Return the root of a component: ``method fedprox``, ``stage clip`` for an upload filter."""
    return f"{LABELS.get(kind, kind)} {name}"


@cache
def _code(root: str, packages: tuple[tuple[str, Path], ...]) -> str:
    """`code`; packages: a key of the cache, as another plugin holds other files."""
    hash_now, numbers = tree(root), certified()
    return str(numbers.versions[root]) if numbers.hashes.get(root) == hash_now else hash_now


def tree(root: str) -> str:
    """The hash of the code of a root."""
    return digest(files(root))


def room(name: str) -> str:
    """A hash of the code of a room that decides no number, for what shows numbers."""
    return digest({label(path): _hash(path, None) for path in sorted((ROOT / name).rglob("*.py"))})


def edited(*roots: str) -> dict[str, str]:
    """The files of roots that are not certified, with the hash of each: edits, and plugins."""
    known = certified().files
    return {
        label: hash_now
        for root in roots
        if certified().hashes.get(root) != tree(root)
        for label, hash_now in files(root).items()
        if known.get(label, ("", ""))[1] != hash_now
    }


def settings(spec: Mapping[str, Any]) -> Iterator[str]:
    """The settings of a run that may have a version of their own: ``training.optimizer=adamw``.

    Of a text with its value; of another setting, that it is there and not 0.
    """
    values = {f"training.{key}": value for key, value in spec["training"].items()}
    values |= {key: spec.get(key) for key in ("test", "train_on", "start")}
    for key, value in values.items():
        if isinstance(value, str) and key != "start":
            yield f"{key}={value}"
        elif value:
            yield key


def versions_of_settings(spec: Mapping[str, Any]) -> dict[str, str]:
    """The versions of a run's settings, of those that have any."""
    known = certified().versions
    return {name: str(known[name]) for name in settings(spec) if name in known}


def roots() -> list[str]:
    """All roots of ``fl`` that are certified: analyses are not, as a run does not need them."""
    return [CORE, DATA] + [
        entry(kind, name)
        for kind in registry.FOLDERS
        if kind != "analysis"
        for name in registry.names(kind)
        if registry.file(kind, name, Location("numbers")).is_relative_to(ROOT)
    ]


@cache
def certified() -> Numbers:
    """What ``numbers.json`` says; nothing where there is none."""
    if not NUMBERS.is_file():
        return Numbers({}, {}, {})
    content = parse_json(NUMBERS.read_bytes())
    files = {label: (bytes_, code) for label, (bytes_, code) in content["files"].items()}
    return Numbers(content["versions"], content["hashes"], files)


def write(versions: Mapping[str, int]) -> None:
    """Certify the code at hand: ``versions`` has one for each of `roots`, and those of settings."""
    hashes = {root: tree(root) for root in roots()}
    paths = {path for root in hashes for path in _paths(root)}
    files = {
        label(path): [syntax.of_bytes(path.read_bytes()), syntax.of_code(path)] for path in paths
    }
    content: dict[str, dict[str, Any]]
    content = {"versions": dict(versions), "hashes": hashes, "files": files}
    lines = []
    for key, values in content.items():
        inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(values.items()))
        lines.append(f'"{key}": {{\n{inner}\n}}')
    NUMBERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    certified.cache_clear()
    _code.cache_clear()


def files(root: str) -> dict[str, str]:
    """The hashes of the files of a root, by label."""
    return _files(root, tuple(plugins.roots().items()))


@cache
def _files(root: str, packages: tuple[tuple[str, Path], ...]) -> dict[str, str]:
    known = certified().files
    return {label(path): _hash(path, known.get(label(path))) for path in _paths(root)}


def _hash(path: Path, known: tuple[str, str] | None) -> str:
    if known is not None and known[0] == syntax.of_bytes(path.read_bytes()):
        return known[1]
    return syntax.of_code(path)


def label(path: Path) -> str:
    """``fl/api/trees.py``, ``mylab/terms.py``: the same wherever the package lies."""
    for name, root in plugins.roots().items():
        if path.is_relative_to(root):
            return f"{name}/{path.relative_to(root).as_posix()}"
    return path.name


def _paths(root: str) -> list[Path]:
    """The files of a root, in order."""
    if root in ROOMS:
        of_entries = {path for folder in _folders(ROOT) for path in folder.rglob("*.py")}
        # A stub says what a package imports when it is asked for it.
        shared = {path for room in ROOMS[root] for path in (ROOT / room).rglob("*.py*")}
        return sorted(p for p in shared - of_entries if p.suffix in (".py", ".pyi"))
    kind = next(kind for kind in registry.FOLDERS if root.startswith(entry(kind, "")))
    name = root.removeprefix(entry(kind, ""))
    return _of_entry(registry.file(kind, name, Location("the spec")))


def _folders(package: Path) -> list[Path]:
    """Where the entries of a package lie, see `registry.FOLDERS`."""
    inner = registry.FOLDERS.values()
    return [package / (name if package == ROOT else Path(name).name) for name in inner]


def _of_entry(file: Path) -> list[Path]:
    """The file of an entry, and those of other entries that it imports.

    In a plugin, all of its files besides that are no entry's: nothing else holds them.
    """
    waiting, seen = [file.resolve()], set[Path]()
    for package in plugins.roots().values():
        if package != ROOT and file.is_relative_to(package):
            entries = {path for folder in _folders(package) for path in folder.glob("[a-z]*.py")}
            waiting += sorted(set(package.rglob("*.py")) - entries)
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += _imported(path)
    return sorted(seen)


def _imported(path: Path) -> Iterator[Path]:
    """The files of entries that a file may import: those whose folder and name an import has."""
    for statement in IMPORT.findall(path.read_text(encoding="utf-8")):
        words, near = set(re.findall(r"\w+", statement)), statement.split()[1].startswith(".")
        for name, package in plugins.roots().items():
            for folder in _folders(package) if name in words or near else ():
                inside = {*folder.relative_to(package).parts} <= words
                if inside or (near and folder == path.parent):
                    yield from (f for f in folder.glob("*.py") if f.stem in {*words, "__init__"})


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """The keys at which two nested specs differ: ``training.lr: 0.1, not 0.05``."""
    for key in sorted({*ours, *theirs}):
        mine, other, name = ours.get(key), theirs.get(key), f"{at}.{key}" if at else key
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            yield from difference(mine, other, name)
        elif mine != other:
            yield f"{name}: {mine!r}, not {other!r}"
