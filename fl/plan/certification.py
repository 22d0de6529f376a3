"""Certified code: which versions it has, and which hashes stand for them.

Code is certified in `make golden`, when the golden worlds agree with its version. From then on runs
are named by the version, and the hash of the code, by which earlier runs may be named, is another
name of it. Such runs are found by `fl.plan.adoption`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, NamedTuple

from fl.base import identity, registry
from fl.base.errors import Location
from fl.base.files import parse_json
from fl.base.hashes import digest, hash_bytes
from fl.base.identity import CORE, DATA
from fl.base.syntax import hash_code

Content = dict[str, Any]
"""Content of ``numbers.json``: versions, hashes, former hashes and files, each by name."""

MAX_FILES = 3
"""Largest number of files that are named."""


def roots() -> list[str]:
    """Return all roots of ``fl`` that are certified, which are all but analyses."""
    return [CORE, DATA] + [
        identity.entry(kind, name)
        for kind in registry.FOLDER_BY_KIND
        if kind != "analysis"
        for name in registry.names(kind)
        if registry.file(kind, name, Location("numbers")).is_relative_to(identity.ROOT)
    ]


def equal_names(root: str, roots: Collection[str]) -> list[str]:
    """Return the names of a root's code under which a run has the same numbers.

    Code that is edited or not yet certified has its hash as its name. Once that hash has been
    certified, it is another name of the version.

    Args:
        root: The root.
        roots: All roots and options of the run. An earlier hash is left out if the version of one
            of them rose since: a run of that hash and of the risen version comes from code that was
            edited back, and has the earlier numbers.

    Returns:
        The version first; only the present name if ``root`` was never certified.
    """
    certified = identity.read_certified()
    if root not in certified.hashes:
        return [identity.root_code(root)]
    hashes = {certified.hashes[root]: [], **certified.former_hashes.get(root, {})}
    equal_hashes = (name for name, risen in hashes.items() if not {*risen} & {*roots})
    return [str(certified.versions[root]), *equal_hashes]


class Doubt(NamedTuple):
    """A reason to doubt that a stored run has the numbers that the present code gives.

    Attributes:
        text: The reason.
        is_change: Whether a version says that the numbers have changed.
    """

    text: str
    is_change: bool


def find_doubt(root: str, name: str, roots: Collection[str]) -> Doubt | None:
    """Return why code may give other numbers than the present; None if it gives the same.

    Args:
        root: The root of the code.
        name: Version or hash of the code, as the record of a run has it.
        roots: All roots and options of the run.
    """
    if name == identity.root_code(root):
        return None
    certified = identity.read_certified()
    if root not in certified.hashes:
        return Doubt(f"{root}: code that was never certified", False)
    version = certified.versions[root]
    if name in equal_names(root, roots):
        is_edited = identity.root_hash(root) != certified.hashes[root]
        return Doubt(f"{root}: version {version}, now edited", False) if is_edited else None
    if is_version(name):
        return Doubt(f"{root}: version {name}, now {version}", True)
    if risen := sorted({*certified.former_hashes.get(root, {}).get(name, ())} & {*roots}):
        texts = (f"{rise}: before version {certified.versions[rise]}" for rise in risen)
        return Doubt("; ".join(texts), True)
    return Doubt(f"{root}: code that was never certified", False)


def was_never_certified(record: Mapping[str, Any]) -> bool:
    """Whether a run is of code of ``fl`` that was not certified, then or later.

    Args:
        record: The content of its ``run.json``.
    """
    if not any(label.startswith("fl/") for label in record.get("code_files", ())):
        return False
    data_ids = ("dataset", "partition")
    names = {name for key, name in record["code"].items() if key not in data_ids}
    hashes = {name for name in names if not is_version(name)}
    # Without a hash, the code that was not certified is that of data, which is a part of their ids.
    return not hashes or not hashes <= certified_hashes()


def uncertified_note() -> str:
    """Return a sentence on shared code that is not certified as it is; empty if all is."""
    hashes = identity.read_certified().hashes
    edited = [root for root in (CORE, DATA) if hashes.get(root) != identity.root_hash(root)]
    if not edited:
        return ""
    files = sorted(identity.uncertified_files(*edited))
    more = f" and {len(files) - MAX_FILES} more" if len(files) > MAX_FILES else ""
    changes = f" ({', '.join(files[:MAX_FILES])}{more})" if files else ""
    return (
        f"shared code is not certified: {' and '.join(edited)}{changes}. Names of runs hold a hash "
        "of this state, and are not found at another"
    )


def certified_names(root: str) -> list[str]:
    """Return all versions and hashes under which code of a root was certified, and its name now."""
    certified = identity.read_certified()
    versions = range(1, certified.versions.get(root, 0) + 1)
    hashes = {*certified.former_hashes.get(root, ()), certified.hashes.get(root, "")} - {""}
    return [identity.root_code(root), *map(str, versions), *sorted(hashes)]


def is_version(name: str) -> bool:
    """Whether the name of code is a version and not a hash, see `identity.root_code`."""
    return len(name) < 16


@cache
def certified_hashes() -> set[str]:
    """Return the hashes of roots that are, or were, certified under the present versions."""
    certified = identity.read_certified()
    return {*certified.hashes.values()}.union(*certified.former_hashes.values())


def certify(versions: Mapping[str, int]) -> None:
    """Certify the present code; what was certified before becomes a former hash.

    Args:
        versions: The version of each of `roots`, and of the options that have one.
    """
    paths_by_root = {root: identity.code_files(root) for root in roots()}
    hashes_by_file = {
        identity.file_label(path): [hash_bytes(path.read_bytes()), hash_code(path, is_own=True)]
        for paths in paths_by_root.values()
        for path in paths
    }
    # Not `identity.root_hash`, which takes certified files at the hash that they had then.
    hashes = {
        root: digest({label: hashes_by_file[label][1] for label in map(identity.file_label, paths)})
        for root, paths in paths_by_root.items()
    }
    content: Content = {
        "versions": versions,
        "hashes": hashes,
        "former_hashes": _former_hashes(versions, hashes),
        "files": hashes_by_file,
    }
    _write(content)


def certify_state(versions: Mapping[str, int], hashes: Mapping[str, str]) -> int:
    """Certify an earlier state of the code, whose numbers were those of its versions.

    Args:
        versions: The versions in its ``numbers.json``.
        hashes: By root, the hash of its code.

    Returns:
        Number of hashes that were not certified before.
    """
    content: Content = parse_json(identity.NUMBERS.read_bytes())
    certified, former_hashes = identity.read_certified(), content.setdefault("former_hashes", {})
    risen = {
        name for name in certified.versions if certified.versions[name] > versions.get(name, 1)
    }
    count = 0
    for root, name in hashes.items():
        if name not in {certified.hashes.get(root, name), *certified.former_hashes.get(root, ())}:
            former_hashes[root] = {**former_hashes.get(root, {}), name: sorted(risen)}
            count += 1
    _write(content)
    return count


def _write(content: Content) -> None:
    """Write ``numbers.json``."""
    lines = []
    for key, values in content.items():
        inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(values.items()))
        lines.append(f'"{key}": {{\n{inner}\n}}')
    identity.NUMBERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    identity.forget_certified()
    certified_hashes.cache_clear()


def _former_hashes(
    versions: Mapping[str, int], hashes: Mapping[str, str]
) -> dict[str, dict[str, list[str]]]:
    """Return `CertifiedCode.former_hashes` for new versions and hashes of the roots."""
    certified = identity.read_certified()
    all_risen = {name for name in versions if versions[name] > certified.versions.get(name, 1)}
    table = {}
    for root, hash_before in certified.hashes.items():
        if root not in hashes:
            continue
        former_hashes = {hash_before: [], **certified.former_hashes.get(root, {})}
        if hashes[root] != hash_before or root in all_risen:
            former_hashes = {
                former: sorted({*risen, *all_risen}) for former, risen in former_hashes.items()
            }
        if root not in former_hashes.get(hashes[root], ()):
            former_hashes.pop(hashes[root], None)
        if former_hashes:
            table[root] = former_hashes
    return table
