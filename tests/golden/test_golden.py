"""The numbers of all entries are those that are kept: `python -m tests.golden` says it of some.

Of certified code `make golden` has measured all worlds, so that one of each entry shows whether
this machine and its packages give the same numbers. Of other code all worlds are measured.
"""

from __future__ import annotations

import zlib
from collections import defaultdict

import pytest

from fl.base import identity, plugins
from fl.plan import certification
from golden import adapter, defaults, kept, measure

KINDS = ("method", *adapter.ADDED.values(), "model", "task", "data set", "partition scheme")


def chosen(certified: dict[str, bool]) -> list[str]:
    """All worlds of what all runs share and of code that is not certified; one of other entries.

    Args:
        certified: By root, whether its code is certified.
    """
    by_subject = defaultdict(list)
    for name in measure.names():
        by_subject[measure.subject(name)].append(name)
    found = []
    for subject, worlds in by_subject.items():
        # Not the first of each: worlds of a kind, such as those with stragglers, have one place.
        one = worlds[zlib.crc32(subject.encode()) % len(worlds)]
        for name in worlds:
            shared, roots = measure.roots(name)
            is_certified = all(certified.get(root, True) for root in (shared, *roots))
            if name == one or subject == identity.CORE or not is_certified:
                found.append(name)
    return found


def certified_roots() -> dict[str, bool]:
    """Whether the code of each root is the one that was certified."""
    hashes = identity.read_certified().hashes
    return {root: hashes.get(root) == identity.root_hash(root) for root in certification.roots()}


@pytest.fixture(scope="module")
def kept_numbers() -> dict[str, measure.Fingerprint]:
    return kept.load()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", chosen(certified_roots()))
def test_numbers_are_those_that_are_kept(
    name: str, kept_numbers: dict[str, measure.Fingerprint]
) -> None:
    assert not kept.difference(name, measure.fingerprint(name), kept_numbers.get(name))


def test_worlds_of_an_edited_entry_are_all_measured() -> None:
    certified = dict.fromkeys(certification.roots(), True)
    few = chosen(certified)
    assert {measure.subject(name) for name in few} == set(map(measure.subject, measure.names()))
    kinds = {name.split(": ")[1].split()[-1] for name in few if name.startswith("method ")}
    assert {"plain", "images", "steps", "stragglers", "dropout", "masks"} <= kinds
    more = chosen({**certified, "method fedprox": False})
    edited = {name for name in measure.names() if "method fedprox" in measure.roots(name)[1]}
    assert set(more) == {*few, *edited} and len(more) > len(few)
    assert set(chosen({**certified, "core": False, "data": False})) == set(measure.names())


FROM_FILES = {"model timm", "model transformers"}
"""Models of packages that are not in the lock files, whose weights are a user's."""


def test_every_entry_has_a_world_and_no_other_world_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Tests before it in this process may have used plugins, whose entries need no world.
    own_roots = {name: root for name, root in plugins.roots().items() if name == "fl"}
    monkeypatch.setattr(plugins, "_roots", own_roots)
    about = set().union(*(measure.roots(name)[1] for name in measure.names()))
    for kind in KINDS:
        roots = {adapter.root(kind, entry) for entry in adapter.names(kind)}
        assert roots - FROM_FILES <= about
    assert list(kept.load().keys() - set(measure.names())) == []
    assert defaults.load() == defaults.now()
    assert sum(path.stat().st_size for path in kept.FOLDER.iterdir()) < 400_000
