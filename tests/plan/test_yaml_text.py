"""YAML that is read as it was meant, or refused by line; nothing in between, and no hang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fl.base.errors import ConfigError, Location
from fl.plan import yaml_text

WHERE = Location("a.yaml")


def read(folder: Path, text: str) -> Any:
    path = folder / "a.yaml"
    path.write_text(text, encoding="utf-8")
    return yaml_text.read(path, WHERE)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    message = str(caught.value)
    assert message.startswith("a.yaml: ")
    assert "\n" not in message and len(message) < 300
    return message.removeprefix("a.yaml: ")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("0x1F", 31),
        ("0o10", 8),
        ("'010'", "010"),
        ('"1:30"', "1:30"),
        ("0.5", 0.5),
        ("1e-3", 1e-3),
        ("9223372036854775808", 2**63),
        ("2024-01-01", "2024-01-01"),
        ("!!str 5", "5"),
        ("yes", True),
    ],
)
def test_what_has_one_meaning_is_read(tmp_path: Path, text: str, value: Any) -> None:
    found = read(tmp_path, f"key: {text}\n")["key"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("010", 'the number as 10 (base 8: 0o10), text as "010"'),
        ("1:30", 'a number in digits, as 90 or 0.5, text as "1:30"'),
        ("1_000", 'text as "1_000"'),
        ("0b11", 'text as "0b11"'),
    ],
)
def test_what_two_readers_read_differently_is_refused(
    tmp_path: Path, text: str, allowed: str
) -> None:
    message = refusal(tmp_path, f"a: 1\nkey: [{text}]\n")
    assert message.startswith(f"line 2: {text} ")
    assert message.endswith(allowed)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: " + "7" * 5000, "7777... (5000 characters) is no number that fits"),
        ("a: 1e999", "1e999 (5 characters) is no number that fits. Allowed: a number of 64 bits"),
        ("a: !!int abc", "'abc' is no int"),
        ("a: !!set {b}", "the tag tag:yaml.org,2002:set is not known here (line 1)"),
        ('a: "\\ud800"', "has a character that no file can hold"),
        ("a: " + "[" * 3000 + "]" * 3000, "too deep within each other. Allowed: 50 at most"),
        ("- " * 3000, "too deep within each other"),
        ("a: &x [*x]", "contains itself"),
        ("a: {<<: 3}", "is not valid YAML: "),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in refusal(tmp_path, text + "\n")


def test_aliases_that_unfold_without_end(tmp_path: Path) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert "aliases repeat too much" in refusal(tmp_path, "\n".join(lines))


def test_aliases_and_merge_keys(tmp_path: Path) -> None:
    text = "a: &a {x: 1, y: 2}\nb: &b {<<: *a, y: 3}\nc: {<<: [*b, *a], z: 4}\nd: *a\n"
    found = read(tmp_path, text)
    assert found["b"] == {"x": 1, "y": 3}
    assert found["c"] == {"x": 1, "y": 3, "z": 4}
    assert found["d"] == found["a"]
