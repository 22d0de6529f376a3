"""The numbers of all entries are those that are kept: `python -m tests.golden` says it of some."""

from __future__ import annotations

import pytest

from fl.base import plugins
from golden import adapter, defaults, kept, measure

KINDS = ("method", *adapter.ADDED.values(), "model", "task", "data set", "partition scheme")


@pytest.fixture(scope="module")
def kept_numbers() -> dict[str, measure.Fingerprint]:
    return kept.load()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", measure.names())
def test_numbers_are_those_that_are_kept(
    name: str, kept_numbers: dict[str, measure.Fingerprint]
) -> None:
    assert not kept.difference(name, measure.fingerprint(name), kept_numbers.get(name))


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
