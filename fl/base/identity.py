"""The identity of a run: its spec, the version of the code that decides its numbers, its data.

Code has roots: the code that all runs share, the code that all data share, and each component. A
root has a version in ``numbers.json``, with the hash of its code when the golden worlds last agreed
with that version (`make golden`). If the present code has that hash, runs are named by the version.
If not (an edit in progress, a plugin), they are named by the hash of the present code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fl.base import plugins, registry
from fl.base.errors import FedloomError, Location
from fl.base.files import parse_json, sha256
from fl.base.hashes import digest as digest
from fl.base.hashes import hash_bytes
from fl.base.specs import ComponentSpec, Spec
from fl.base.syntax import hash_code

ROOT = plugins.FL
NUMBERS = ROOT / "numbers.json"

CORE, DATA = "core", "data"
ROOMS = {
    CORE: ("base", "pytorch", "api", "blocks", "engine"),
    DATA: ("base", "data"),
}
"""Rooms of the two shared roots; files of components do not belong to them.

There are two roots, because an edit of the engine must not prepare data sets again, which may take
hours. A run depends on both, since the ids of its data are part of its name. Rooms that no run and
no data set imports (``plan``, ``store``, ``runner``, ``report``, ``cli``) decide no numbers.
"""

TEXT_MODULES = tuple(
    f"base/{name}.py"
    for name in ("errors", "folders", "hashes", "identity", "plugins", "syntax", "units")
)
"""Modules of the rooms that decide no number, as all that they return are texts, paths, names and
syntax.
"""

IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t][^\n(]*(?:\([^)]*\))?", re.MULTILINE)


class CertifiedCode(NamedTuple):
    """Content of ``numbers.json``.

    Attributes:
        versions: By root, and by option (`versioned_options`) whose numbers alone have changed.
        hashes: By root, the hash of its code when it was certified.
        files: By file of ``fl``, a hash of its bytes and one of its syntax, so that an unchanged
            file is not parsed.
        former_hashes: By root, earlier hashes that were certified; for each the roots and options
            whose versions rose when the hash was replaced or later.
    """

    versions: dict[str, int]
    hashes: dict[str, str]
    files: dict[str, tuple[str, str]]
    former_hashes: dict[str, dict[str, list[str]]]


def point_id(spec: Spec, code: Mapping[str, str], defaults: Sequence[str] = ()) -> str:
    """Return the id of a point: a hash of its spec without the seed, of its code and data.

    Args:
        spec: The spec of one of its runs.
        code: The version or hash of its code, by root, and the ids of its data.
        defaults: Keys of the spec with their default values (`fl.plan.run_spec`). They are left
            out, so that a key that a later version adds renames no run.
    """
    return digest([_drop_keys(spec, ["seed", *defaults]), dict(code)])


def _drop_keys(spec: Spec | ComponentSpec, keys: Sequence[str]) -> Any:
    """Return a spec without some keys: ``seed``, ``training.momentum``, ``terms.0.mu``."""
    inner: dict[str, list[str]] = {}
    for key in keys:
        first, _, inner_key = key.partition(".")
        inner.setdefault(first, []).append(inner_key)
    return {
        key: _pruned(value, inner[key]) if key in inner else value
        for key, value in spec.items()
        if "" not in inner.get(key, ())
    }


def _pruned(value: Any, keys: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        return _drop_keys(value, keys)
    pruned = _drop_keys({str(index): item for index, item in enumerate(value)}, keys)
    return list(pruned.values())


def run_id(point: str, seed: int) -> str:
    """Return the id of a point's run with that seed."""
    return digest([point, seed])


CodeOf = Callable[[str], str]
"""Function that returns the name of the code of a root, such as `root_code`."""


def root_code(root: str) -> str:
    """Return the part of a run's name for a root: its version if it is certified, else its hash.

    Args:
        root: `CORE`, `DATA`, or an entry, see `entry`.
    """
    packages = tuple(plugins.roots().items())
    stamps: list[tuple[int, int]] = []
    for text, path in opened_files(root).items():
        try:
            stat = path.stat()
        except OSError as error:
            problem = f"{path}: cannot be read ({error.strerror}), and the code of {root} opens it"
            raise FedloomError(problem, advice=f"put {text!r} back") from None
        stamps.append((stat.st_mtime_ns, stat.st_size))
    return _code(root, packages, tuple(stamps))


LABELS = {"upload filter": "stage"}
"""Kinds whose roots have another label than the kind: roots stand in ``numbers.json`` and in the
names of runs, so they keep the label of earlier versions.
"""


def entry(kind: str, name: str) -> str:
    """Return the root of a component: ``method fedprox``, ``stage clip`` for an upload filter."""
    return f"{LABELS.get(kind, kind)} {name}"


@cache
def _code(root: str, packages: tuple[tuple[str, Path], ...], stamps: tuple[Any, ...]) -> str:
    """Cache of `root_code`; other plugins have other files, and opened files may change."""
    hash_now, numbers = root_hash(root), read_certified()
    return str(numbers.versions[root]) if numbers.hashes.get(root) == hash_now else hash_now


def root_hash(root: str) -> str:
    """Return the hash of a root's code."""
    return digest(root_files(root))


def room_hash(name: str) -> str:
    """Return the hash of a room's code; used for reports, which decide no numbers."""
    return digest(
        {file_label(path): hash_code(path) for path in sorted((ROOT / name).rglob("*.py"))}
    )


def uncertified_files(*roots: str) -> dict[str, str]:
    """Return the files of roots that are not certified (edits, plugins), with their hashes."""
    certified_files = read_certified().files
    return {
        label: hash_now
        for root in roots
        if read_certified().hashes.get(root) != root_hash(root)
        for label, hash_now in root_files(root).items()
        if certified_files.get(label, ("", ""))[1] != hash_now
    }


def versioned_options(spec: Spec) -> Iterator[str]:
    """Yield the options of a run that may have versions: ``training.optimizer=adamw``.

    Texts are given with their values, other options if they are set and not 0.
    """
    values = {f"training.{key}": value for key, value in spec["training"].items()}
    values |= {"test": spec.get("test"), "train_on": spec.get("train_on")}
    values |= {"start": spec.get("start")}
    for key, value in values.items():
        if isinstance(value, str) and key != "start":
            yield f"{key}={value}"
        elif value:
            yield key


def option_versions(spec: Spec) -> dict[str, str]:
    """Return the versions of a run's options, for those that have one."""
    versions = read_certified().versions
    return {name: str(versions[name]) for name in versioned_options(spec) if name in versions}


@cache
def read_certified() -> CertifiedCode:
    """Return the content of ``numbers.json``; empty if the file does not exist."""
    if not NUMBERS.is_file():
        return CertifiedCode({}, {}, {}, {})
    content = parse_json(NUMBERS.read_bytes())
    hashes = {label: (bytes_, syntax_) for label, (bytes_, syntax_) in content["files"].items()}
    former_hashes = content.get("former_hashes", {})
    return CertifiedCode(content["versions"], content["hashes"], hashes, former_hashes)


def forget_certified() -> None:
    """Read ``numbers.json`` again when it is asked for next, as it was written anew."""
    read_certified.cache_clear()
    _code.cache_clear()


def root_files(root: str) -> dict[str, str]:
    """Return the hashes of a root's files by label, those that a plugin opens included."""
    packages = tuple(plugins.roots().items())
    opened = {text: sha256(path)[:16] for text, path in opened_files(root).items()}
    return {**opened, **_files(root, packages)}


def opened_files(root: str) -> dict[str, Path]:
    """Return the files that a plugin's component opens, by their path in its code.

    Data sets name their files by keys and sources, and analyses read what runs wrote.
    """
    return _opened_files(root, tuple(plugins.roots().items()))


@cache
def _opened_files(root: str, packages: tuple[tuple[str, Path], ...]) -> dict[str, Path]:
    """Cache of `opened_files`."""
    if root in ROOMS or root.startswith((entry("data set", ""), entry("analysis", ""))):
        return {}
    file = _component_file(root)
    package = _plugin_of(file)
    if package is None:
        return {}
    reached, waiting = set[Path](), [file]
    while waiting:
        path = waiting.pop()
        if path not in reached:
            reached.add(path)
            words = _words(" ".join(IMPORT.findall(path.read_text(encoding="utf-8"))))
            waiting += [helper for helper in _helpers(package) if helper.stem in words]
    is_of_model = root.startswith(entry("model", ""))
    opened = [plugins.opened_files(path, package, is_of_model) for path in sorted(reached)]
    return {text: path for files in opened for text, path in files.items()}


@cache
def _files(root: str, packages: tuple[tuple[str, Path], ...]) -> dict[str, str]:
    paths = code_files(root)
    if root not in ROOMS and _plugin_of(_component_file(root)):
        return {file_label(path): hash_code(path) for path in paths}
    certified = read_certified().files
    return {file_label(path): _hash(path, certified.get(file_label(path))) for path in paths}


def _hash(path: Path, certified: tuple[str, str] | None) -> str:
    if certified is not None and certified[0] == hash_bytes(path.read_bytes()):
        return certified[1]
    return hash_code(path, is_own=True)


def file_label(path: Path) -> str:
    """Return a file's path from its package, ``fl/api/trees.py``, ``mylab/terms.py``."""
    for name, root in plugins.roots().items():
        if path.is_relative_to(root):
            return f"{name}/{path.relative_to(root).as_posix()}"
    return path.name


def code_files(root: str) -> list[Path]:
    """Return the Python files of a root, in order."""
    if root in ROOMS:
        components = {path for folder in _folders(ROOT) for path in folder.rglob("*.py")}
        # A stub decides which names a package imports.
        shared = {path for room in ROOMS[root] for path in (ROOT / room).rglob("*.py*")}
        uncounted = components | {ROOT / name for name in TEXT_MODULES}
        return sorted(p for p in shared - uncounted if p.suffix in (".py", ".pyi"))
    return _component_files(_component_file(root))


def _component_file(root: str) -> Path:
    kind = next(kind for kind in registry.FOLDER_BY_KIND if root.startswith(entry(kind, "")))
    name = root.removeprefix(entry(kind, ""))
    return registry.file(kind, name, Location("the spec"))


def _folders(package: Path) -> list[Path]:
    """Return the folders of a package's components, see `registry.FOLDER_BY_KIND`."""
    inner = registry.FOLDER_BY_KIND.values()
    return [package / (name if package == ROOT else Path(name).name) for name in inner]


def _component_files(file: Path) -> list[Path]:
    """Return the file of a component, and the files of other components that it imports.

    In a plugin, all files that are no components are added, since no other root has them. So are
    those of a plugin from which it imports.

    Raises:
        FedloomError: If a file of a plugin imports a module of the user's outside of plugins.
    """
    waiting, visited = [file.resolve()], set[Path]()
    packages = {package for package in plugins.roots().values() if file.is_relative_to(package)}
    waiting += [path for package in packages for path in _helpers(package)]
    while waiting:
        path = waiting.pop()
        if path in visited:
            continue
        visited.add(path)
        waiting += _imports(path)
        package = _plugin_of(path)
        if package is not None:
            plugins.check_imports(path, package)
            imported = {plugins.roots()[name] for name in plugins.imported_plugins(path)}
            waiting += [path for new in imported - packages for path in _helpers(new)]
            packages |= imported
    return sorted(visited)


def _plugin_of(file: Path) -> Path | None:
    """Return the package of a plugin's file; None for a file of ``fl``."""
    packages = (package for package in plugins.roots().values() if package != ROOT)
    return next((package for package in packages if file.is_relative_to(package)), None)


def _helpers(package: Path) -> list[Path]:
    """Return the files of a plugin that are no components; no file of ``fl``."""
    if package == ROOT:
        return []
    components = {path for folder in _folders(package) for path in folder.glob("[a-z]*.py")}
    return sorted(set(package.rglob("*.py")) - components)


def _imports(path: Path) -> Iterator[Path]:
    """Yield the files of components whose folder and name occur in an import of a file."""
    for statement in IMPORT.findall(path.read_text(encoding="utf-8")):
        words = _words(statement)
        is_relative = statement.split()[1].startswith(".")
        for name, package in plugins.roots().items():
            for folder in _folders(package) if name in words or is_relative else ():
                inside = {*folder.relative_to(package).parts} <= words
                if inside or (is_relative and folder == path.parent):
                    yield from (f for f in folder.glob("*.py") if f.stem in {*words, "__init__"})


def _words(statement: str) -> set[str]:
    return set(re.findall(r"\w+", statement))
