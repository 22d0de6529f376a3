"""The keys of methods, terms and models, read off their files without importing them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fl.base import fields, meanings, registry
from fl.base.declared import dataclass_of
from fl.base.errors import Where

WHERE = Where("test")
KINDS = ("method", "term", "alteration", "model", "data set", "analysis")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_is_what_is_imported(kind: str) -> None:
    for name in registry.names(kind):
        read, whole = (ask(kind, name, WHERE) for ask in (registry.declared, registry.find))
        assert vars(read) | {"target": 0} == vars(whole) | {"target": 0}
        assert read.target is not whole.target, "it is read"
        assert fields.fields(read.target) == fields.fields(whole.target), name
        assert meanings.meanings(read.target) == meanings.meanings(whole.target)
        assert meanings.about(read.target) == meanings.about(whole.target)
        for said in ("training", "stages", "title", "starts", "weights"):
            ours, theirs = (getattr(one.target, said, None) for one in (read, whole))
            assert ours == theirs or callable(theirs) or isinstance(theirs, property), (name, said)


HEAD = "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass A:\n"
BUILD = "    def build(self, setting): ...\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "class A:\n" + BUILD,
        HEAD + BUILD + "@dataclass\nclass B:\n" + BUILD,
        "import no_such_module\n" + HEAD + "    a: no_such_module.B = 3\n    b: int = c\n" + BUILD,
        HEAD + "    a: int = 1 / 0\n" + BUILD,
        "def build(:",
    ],
)
def test_a_file_that_declares_by_other_means_is_left_to_the_import(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "a.py"
    file.write_text(text)
    assert dataclass_of(file) is None


def test_what_only_the_arithmetic_needs_is_not_executed(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(
        "from __future__ import annotations\nimport no_such_module\nfrom typing import Literal\n"
        "from fl.base.fields import Count as Many\nKinds = Literal['a', 'b']\nLEAST = 1 + 1\n"
        "raise RuntimeError\n" + HEAD + "    kind: Kinds = 'a'\n    n: Many = LEAST\n" + BUILD
    )
    found = dataclass_of(file)
    assert found is not None
    assert {key: one.default for key, one in fields.fields(found).items()} == {"kind": "a", "n": 2}
    assert fields.describe(fields.fields(found)["kind"].hint) == "one of a, b"
