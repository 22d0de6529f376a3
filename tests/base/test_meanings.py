"""What is read off docstrings about config keys."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fl.base import key_texts, registry
from fl.cli import catalogue

KEYS = ("mu", "lr", "kernels", "min_samples")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("mu: its weight; lr: of\n  AdamW.", {"mu": "its weight", "lr": "of AdamW"}),
        ("mu, lr: see above. kernels: r.", {"mu": "see above", "lr": "see above", "kernels": "r"}),
        ("A thing.\n\n``mu``: what.\n`lr`: how.\n\nMore.", {"mu": "what", "lr": "how"}),
        (
            "mu: 1 to 10; 0: none. (Here.) lr: a rate.",
            {"mu": "1 to 10; 0: none. (Here.)", "lr": "a rate"},
        ),
        ("mu: one.\n\nmu: another.", {"mu": "one"}),
        (
            "Sum.\n\nAttributes:\n    mu: a\n        weight.\n    lr: b.",
            {"mu": "a weight", "lr": "b"},
        ),
        ("The mu: no key, nor ``mu: 3``, nor the kernels.", {}),
        ("samples: not a key of it.", {}),
        ("", {}),
    ],
)
def test_keys_of_a_docstring(text: str, found: dict[str, str]) -> None:
    assert key_texts.parse(text, KEYS) == found


def test_a_docstring_without_keys_is_about_the_thing() -> None:
    @dataclass
    class Told:
        """The sum
        of all.

        mu: a weight.
        """

        mu: float

    assert key_texts.summary_of(Told) == "The sum of all."
    Told.__doc__ = "mu: a weight."
    assert key_texts.summary_of(Told) == ""


def test_what_is_read_of_a_file_is_what_its_import_says() -> None:
    for kind in registry.FOLDER_BY_KIND:
        entries = {entry.name: entry for entry in registry.components(kind)}
        for said in registry.list_documentation(kind):
            entry = entries.pop(said.name)
            assert {key: getattr(entry, key) for key in vars(said)} == vars(said)
        assert not entries


def test_keys_of_all_schemes_are_described_where_a_scheme_says_nothing_else() -> None:
    lines = "\n".join(catalogue.details("partition scheme", "file"))
    assert "  path: text; required\n" in lines
    assert "  seed:" not in lines
    lines = "\n".join(catalogue.details("partition scheme", "homogeneous"))
    assert "  seed: a whole number >= 0; default: 0\n      of the partition\n" in lines


def test_training_that_a_method_sets_is_told() -> None:
    assert "training defaults of this method: rounds 5, local_epochs 1" in list(
        catalogue.details("method", "finetune")
    )
