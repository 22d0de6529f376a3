"""The numbers of all entries are those that are kept: `python -m tests.golden` says it of some."""

from __future__ import annotations

import pytest

from golden import adapter, kept, measure

KINDS = {
    **{kind: kind for kind in ("method", "term", "alteration", "model")},
    **{"data": "data set", "scheme": "partition scheme"},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", measure.names())
def test_numbers_are_those_that_are_kept(name: str) -> None:
    assert not kept.difference(name, measure.fingerprint(name), kept.load().get(name))


def test_every_entry_has_a_world_and_no_other_world_is_kept() -> None:
    about = {name.partition(":")[0] for name in measure.names()}
    for word, kind in KINDS.items():
        assert {f"{word} {entry}" for entry in adapter.names(kind)} <= about
    assert list(kept.load().keys() - set(measure.names())) == []
    assert sum(path.stat().st_size for path in kept.FOLDER.iterdir()) < 400_000
