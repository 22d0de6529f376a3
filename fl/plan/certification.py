"""Certified code: which versions it has, and which hashes stand for them.

Code is certified in `make golden`, when the golden worlds agree with its version. From then on runs
are named by the version, and the hash of the code, by which earlier runs may be named, is another
name of it. Such runs are found by `fl.plan.adoption`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cache

from fl.base import identity, registry
from fl.base.errors import Location
from fl.base.hashes import hash_bytes, hash_code
from fl.base.identity import CORE, DATA


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
    former_hashes = certified.former_hashes.get(root, {})
    return [
        str(certified.versions[root]),
        certified.hashes[root],
        *(former for former, risen in former_hashes.items() if not {*risen} & {*roots}),
    ]


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
    hashes = {root: identity.root_hash(root) for root in roots()}
    paths = {path for root in hashes for path in identity.code_files(root)}
    hashes_by_file = {
        identity.file_label(path): [hash_bytes(path.read_bytes()), hash_code(path)]
        for path in paths
    }
    content: dict[str, Mapping[str, int | str | list[str] | dict[str, list[str]]]]
    content = {
        "versions": versions,
        "hashes": hashes,
        "former_hashes": _former_hashes(versions, hashes),
        "files": hashes_by_file,
    }
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
        if root not in hashes or versions[root] != certified.versions[root]:
            continue
        former_hashes = certified.former_hashes.get(root, {}) | {hash_before: []}
        if hashes[root] != hash_before:
            former_hashes = {
                former: sorted({*risen, *all_risen}) for former, risen in former_hashes.items()
            }
        former_hashes.pop(hashes[root], None)
        if former_hashes:
            table[root] = former_hashes
    return table
