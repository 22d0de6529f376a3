"""The identity of a run: its spec, the code that decides its numbers, its data.

Code is hashed as syntax, without docstrings, comments and layout, file by file: a root file and
everything in ``fl``, or in a user's plugins, that it imports. A package's ``__init__`` counts only
where names are imported from it. Hashes do not depend on the Python version.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fl.base import plugins, syntax
from fl.base.digest import digest as digest
from fl.base.errors import ConfigError, Where

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "engine" / "assembly.py"
"""The root of the code that every run shares: from its spec and its data to its numbers."""
PREPARED = ROOT / "data" / "prepared.py"
"""The root of the code that every data set shares, beside its reader."""
DEALT = ROOT / "data" / "dealt.py"
"""The root of the code that every partition shares, beside its scheme."""
LEDGER = ROOT / "equivalent.yaml"

UNDECISIVE: Mapping[Path, str] = {
    ROOT / "base/errors.py": "messages",
    ROOT / "base/faults.py": "messages",
    ROOT / "base/fields.py": "checks of config keys, whose outcome is in the spec",
    ROOT / "base/files.py": "files are written whole or not at all, and read as they were written",
    ROOT / "base/parquet.py": "refuses damaged tables",
    ROOT / "base/places.py": "folders that a config names",
    ROOT / "api/protocols.py": "what functions are called with, for authors and the type checker",
    ROOT / "base/plugins.py": "where code lies; what it says counts, file by file",
    ROOT / "data/unpacking.py": "moves files whose content is checked",
    ROOT / "data/download.py": "moves files whose content is checked, or is in the spec",
    ROOT / "data/transfer.py": "likewise",
    ROOT / "data/lock.py": "likewise",
    ROOT / "data/contents.py": "likewise",
    ROOT / "engine/processes.py": "which process computes what, with the numbers of one",
}
"""Code that decides no number though code that does imports it, and why it does not."""


def point(spec: Mapping[str, Any], code: Mapping[str, str]) -> str:
    """The id of a point: a hash of its spec without the seed, and of its code and data."""
    return digest([{key: value for key, value in spec.items() if key != "seed"}, dict(code)])


def run(point: str, seed: int) -> str:
    """The id of a point's run."""
    return digest([point, seed])


def files(root: Path) -> dict[str, str]:
    """The hashes of a file and of all that it imports of `plugins.roots`, by label.

    A label is the path in its package, ``fl/api/losses.py``.
    """
    seen: dict[Path, str] = {}
    waiting = [root.resolve()]
    while waiting:
        path = waiting.pop()
        if path not in seen and path not in UNDECISIVE:
            code_hash, imports = _read(path)
            seen[path] = code_hash
            waiting.extend(imports)
    return dict(sorted((_label(path), code_hash) for path, code_hash in seen.items()))


def code(root: Path) -> str:
    """One hash for `files`, or the older one that the ledger declares it equivalent to."""
    return _code(root, tuple(plugins.roots().items()))


@cache
def _code(root: Path, roots: tuple[tuple[str, Path], ...]) -> str:
    """The hash that `code` gives.

    Args:
        roots: A key of the cache, as another plugin folder changes what an import means.
    """
    current = digest(files(root))
    older = _ledger().get(_label(root.resolve()), {})
    seen = {current}
    while current in older:
        current = older[current]
        if current in seen:
            problem = f"{_label(root.resolve())}: {current} goes round in a circle"
            raise ConfigError(Where(_label(LEDGER)), problem, "old hashes that are older")
        seen.add(current)
    return current


def _label(path: Path) -> str:
    """``fl/api/losses.py``, ``mylab/terms.py``: the same wherever the package lies."""
    for name, root in plugins.roots().items():
        if path.is_relative_to(root):
            return f"{name}/{path.relative_to(root).as_posix()}"
    return path.name


@cache
def _ledger() -> dict[str, dict[str, str]]:
    """By root file: new hash -> the old one that it is declared equivalent to."""
    # As plain text, because a hash may look like a number to YAML.
    entries = yaml.load(LEDGER.read_text(), yaml.BaseLoader) or [] if LEDGER.exists() else []
    by_root: dict[str, dict[str, str]] = {}
    for i, entry in enumerate(entries):
        try:
            by_root.setdefault(entry["root"], {})[entry["new"]] = entry["old"]
        except (KeyError, TypeError):
            where = Where(_label(LEDGER)) / i
            raise ConfigError(where, f"is {entry!r}", "root, old and new, each a text") from None
    return by_root


@cache
def _read(path: Path) -> tuple[str, tuple[Path, ...]]:
    """The hash of a file, and the files that it imports."""
    found = syntax.read(path, _label(path))
    imported = {file for module, name in found.imports for file in _imported(module, name)}
    return found.code, tuple(sorted(imported))


def _imported(module: str, name: str) -> list[Path]:
    """The files behind an import, see `syntax.Syntax`."""
    if not name:
        return _whole(module)
    return _whole(f"{module}.{name}") or _part(module, name)


def _whole(name: str) -> list[Path]:
    """The files of a module that is imported as a whole, those included that its names moved to."""
    found = _module(name)
    return found + [
        to for path in found for moved in _moved(path).values() for to in _module(moved)
    ]


def _part(package: str, name: str) -> list[Path]:
    """The files behind ``from package import name``; of a moved name, its new place alone."""
    found = _module(package)
    if name == "*":
        return _whole(package)
    moved = [_module(_moved(path)[name]) for path in found if name in _moved(path)]
    return moved[0] if moved else found


@cache
def _moved(path: Path) -> dict[str, str]:
    """The table ``MOVED`` of a module: by name that moved out of it, the new module."""
    stub = path.with_suffix(".pyi")
    if stub.is_file():  # A package that imports names when they are asked for.
        return _stubbed(stub)
    content = path.read_bytes()
    if b"MOVED" not in content:  # To parse it takes a hundred times as long.
        return {}
    for node in ast.parse(content, filename=str(path)).body:
        if isinstance(node, ast.Assign) and _names(node) == ["MOVED"]:
            return dict(ast.literal_eval(node.value))
    return {}


def _stubbed(stub: Path) -> dict[str, str]:
    """By name, the module that a stub says it comes from, or is."""
    statements = ast.parse(stub.read_bytes()).body
    imported = [one for one in statements if isinstance(one, ast.ImportFrom)]
    names = {name.name: str(one.module) for one in imported for name in one.names}
    wholes = {name: f"{module}.{name}" for name, module in names.items()}
    return {name: wholes[name] if _module(wholes[name]) else names[name] for name in names}


def _names(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _module(name: str) -> list[Path]:
    """The file of a module; nothing for packages of others and for names inside a module."""
    first, *rest = name.split(".")
    root = plugins.roots().get(first)
    if root is None:
        return []
    stem = root.joinpath(*rest)
    return [p for p in (stem.with_suffix(".py"), stem / "__init__.py") if p.is_file()][:1]


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """The keys at which two nested specs differ: ``training.lr: 0.1, not 0.05``."""
    for key in sorted({*ours, *theirs}):
        mine, other, name = ours.get(key), theirs.get(key), f"{at}.{key}" if at else key
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            yield from difference(mine, other, name)
        elif mine != other:
            yield f"{name}: {mine!r}, not {other!r}"
