from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as with_default
from typing import Any, Literal

import pytest

from fl.base import fields
from fl.base.errors import ConfigError, Location
from fl.base.fields import Count, Index, NonNegative, Positive, Share, parse

WHERE = Location("config/studies/a.yaml", "methods.m")


@dataclass(frozen=True)
class Inner:
    size: Count
    name: str = "x"


@dataclass(frozen=True)
class Keys:
    rate: Positive = 0.1
    mu: NonNegative = 0.0
    share: Share = 0.5
    count: Count = 1
    index: Index = 0
    number: float = 1.5
    whole: int = -3
    text: str = "t"
    flag: bool = False
    kind: Literal["sgd", "adamw"] = "sgd"
    maybe: Count | None = None
    either: Count | str = 1
    widths: tuple[Count, ...] = (2,)
    seeds: list[Index] = with_default(default_factory=list)
    names: dict[str, Count] = with_default(default_factory=dict)
    anything: Any = None
    inner: Inner | None = None


def refusal(key: str, value: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(Keys, {key: value}, WHERE)
    return str(caught.value)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("key", "value", "problem", "allowed"),
    [
        ("rate", 0, "is 0.0", "a number > 0"),
        ("rate", NAN, "is nan", "a number > 0"),
        ("count", True, "is True (bool)", "a whole number >= 1"),
        ("text", 3, "is 3 (int)", "text"),
        ("flag", 1, "is 1 (int)", "true or false"),
        ("maybe", "one", "is 'one' (str)", "a whole number >= 1"),
        ("either", 0.5, "is 0.5", "a whole number >= 1 or text"),
        ("widths", 3, "is 3", "a list, each a whole number >= 1. Try: [3]"),
        ("widths", "3 4", "is '3 4'", "a list, each a whole number >= 1"),
        ("names", [1], "is [1]", "a mapping (key: value)"),
    ],
)
def test_a_wrong_value_is_named_with_its_place_and_what_is_allowed(
    key: str, value: Any, problem: str, allowed: str
) -> None:
    expected = f"config/studies/a.yaml: methods.m.{key}: {problem}. Allowed: {allowed}"
    assert refusal(key, value) == expected


@pytest.mark.parametrize(
    ("key", "value", "place", "problem"),
    [
        ("widths", [4, 0], "widths.1", "is 0"),
        ("inner", {}, "inner.size", "is missing"),
        ("inner", {"size": 1, "nam": "y"}, "inner.nam", "unknown key 'nam' (did you mean 'name'?)"),
    ],
)
def test_the_place_of_an_inner_value_is_named(
    key: str, value: Any, place: str, problem: str
) -> None:
    assert refusal(key, value).startswith(f"config/studies/a.yaml: methods.m.{place}: {problem}")


def test_one_of_several_words() -> None:
    problem = "unknown value 'adam' (did you mean 'adamw'?)"
    assert refusal("kind", "adam") == f"{WHERE}.kind: {problem}. Allowed: adamw, sgd"


def test_words_are_described_in_their_own_order() -> None:
    """Python holds `Literal`s of the same words to be equal, whatever their order."""
    assert fields.describe(Literal["sgd", "adamw"]) == "one of sgd, adamw"
    assert fields.describe(Literal["adamw", "sgd"]) == "one of adamw, sgd"


@pytest.mark.parametrize(
    ("key", "given", "settled"),
    [
        ("rate", 1, 1.0),
        ("count", 3.0, 3),
        ("count", 1e3, 1000),
        ("maybe", None, None),
        ("either", "three", "three"),
        ("widths", [4, 2.0], (4, 2)),
        ("seeds", (1, 2), [1, 2]),
        ("names", None, {}),
        ("anything", {"a": [1]}, {"a": [1]}),
        ("inner", {"size": 2.0}, Inner(2)),
    ],
)
def test_equal_meanings_become_one_value_of_one_type(key: str, given: Any, settled: Any) -> None:
    value = parse(Keys, {key: given}, WHERE)[key]
    assert value == settled
    assert type(value) is type(settled)
    if isinstance(settled, tuple | list):
        assert [type(item) for item in value] == [type(item) for item in settled]


def test_defaults_are_filled_in_and_nothing_is_everything_by_default() -> None:
    for given in ({}, None):
        assert parse(Keys, given, WHERE) == {
            name: getattr(Keys(), name) for name in fields.fields(Keys)
        }


def test_a_functions_keyword_only_arguments_are_keys_too() -> None:
    def scheme(labels: list[int], *, clients: Count, alpha: Positive = 1.0) -> None: ...

    assert list(fields.fields(scheme)) == ["clients", "alpha"]
    assert parse(scheme, {"clients": 2}, WHERE) == {"clients": 2, "alpha": 1.0}
    with pytest.raises(ConfigError, match=r"clients: is missing. Allowed: a whole number >= 1"):
        parse(scheme, {"alpha": 2}, WHERE)
    with pytest.raises(ConfigError, match="unknown key 'labels'"):
        parse(scheme, {"labels": 2}, WHERE)
