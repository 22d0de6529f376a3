"""Texts about config keys, which are read off docstrings."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fl.base import registry
from fl.base.errors import ConfigError
from fl.cli import catalogue

KEYS = ("mu", "lr", "kernels", "min_samples")


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        (
            "Sum.\n\nAttributes:\n    mu: A\n        weight.\n    lr: Rate: 1 or 2.",
            {"mu": "A weight", "lr": "Rate: 1 or 2"},
        ),
        ("Sum.\n\nArgs:\n    mu: A.\n\nRaises:\n    lr: B.", {"mu": "A"}),
        ("Attributes:\n    mu: A.\n\nMore.\n\nArgs:\n    lr: B.", {"mu": "A", "lr": "B"}),
        ("mu: outside a section.", {}),
        ("Attributes:\n    mu, lr: One text for two keys.", {}),
        ("Attributes:\n    samples: Not one of the keys.", {}),
        ("", {}),
    ],
)
def test_a_key_has_the_text_of_its_entry(text: str, texts: dict[str, str]) -> None:
    assert catalogue.parse_key_texts(text, KEYS) == texts


def test_the_first_paragraph_is_the_summary() -> None:
    @dataclass
    class Described:
        """The sum
        of all.

        Attributes:
            mu: A weight.
        """

        mu: float

    assert catalogue.summary_of(Described) == "The sum of all."
    Described.__doc__ = "Attributes:\n    mu: A weight."
    assert catalogue.summary_of(Described) == ""


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
    assert "  seed: a whole number >= 0; default: 0\n      Seed of the random numbers\n" in lines


def test_training_that_a_method_sets_is_told() -> None:
    assert "training defaults of this method: rounds 5, local_epochs 1" in list(
        catalogue.details("method", "finetune")
    )


def test_a_method_that_does_not_exist_is_an_error_of_the_command_line() -> None:
    with pytest.raises(ConfigError, match=r"^the command line: .*'fedprx'.*fedprox"):
        [*catalogue.details("method", "fedprx")]
