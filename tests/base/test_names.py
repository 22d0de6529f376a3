"""Suggestions for a name that does not exist."""

from __future__ import annotations

import pytest

from fl.base import registry
from fl.base.errors import ConfigError, Location, quoted_names, similar_name, unknown_name


@pytest.mark.parametrize(
    ("name", "names", "expected"),
    [
        ("fedala", ["fedfa", "fedavg"], None),
        ("classes", ["clients", "seed"], None),
        ("fedprx", ["fedprox", "fedavg"], "fedprox"),
        ("mpl", ["cnn", "mlp"], "mlp"),
        ("gpu", ["gpus", "cpus"], "gpus"),
        ("fed_avg", ["fedavg", "fedavgm"], "fedavg"),
        ("mv", ["mu", "rounds"], "mu"),
        ("alfa", ["alpha", "clients"], "alpha"),
        ("alfa", ["alpha", "aloha"], "alpha"),
        ("graf", ["graph"], "graph"),
        ("Alfa", ["alpha", "clients"], "alpha"),
        # False friends: words of their own that share letters.
        ("alfa", ["alexnet", "apfl", "afl"], None),
        ("fa", ["pha", "lr"], None),
        ("share", ["phase", "samples"], None),
        ("ft", ["pht", "fedavg"], None),
    ],
)
def test_only_a_misspelling_is_mended(name: str, names: list[str], expected: str | None) -> None:
    assert similar_name(name, names) == expected
    text = str(unknown_name(Location("a.yaml"), "name", name, names))
    assert ("did you mean" in text) == (expected is not None)
    assert all(candidate in text for candidate in names)


@pytest.mark.parametrize("name", ["FedAvg", "FedAvg-FT", "LG_FedAvg"])
def test_the_names_of_papers_are_found(name: str) -> None:
    text = str(
        unknown_name(Location("a.yaml"), "method", name, ["fedavg", "fedavg-ft", "lg-fedavg"])
    )
    assert f"did you mean {name.lower().replace('_', '-')!r}?" in text


COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"


def test_names_that_print_alike_are_shown_as_escapes() -> None:
    assert quoted_names([COMPOSED, "tea"]) == [repr(COMPOSED), "'tea'"]
    assert quoted_names([COMPOSED, DECOMPOSED]) == [ascii(COMPOSED), ascii(DECOMPOSED)]
    text = str(unknown_name(Location("a.yaml"), "entry", DECOMPOSED, [COMPOSED, "tea"]))
    assert ascii(DECOMPOSED) in text and f"did you mean {COMPOSED!a}?" in text


MANY = [f"{word}{i}" for word in ("alpha", "beta", "gamma") for i in range(20)]


def test_of_many_names_a_suggestion_is_listed_with_its_neighbours_and_a_count() -> None:
    error = unknown_name(Location("a.yaml"), "key", "alpha_7", MANY)
    assert "did you mean 'alpha7'?" in str(error)
    assert error.allowed.startswith("alpha7, ") and error.allowed.endswith("and 55 others")
    assert not error.advice


def test_of_many_names_without_a_suggestion_all_are_listed_or_a_command() -> None:
    error = unknown_name(Location("a.yaml"), "key", "zzz", MANY)
    assert error.allowed == ", ".join(sorted(MANY))
    error = unknown_name(Location("a.yaml"), "key", "zzz", MANY, "fedloom keys")
    assert (error.allowed, error.advice) == ("", "fedloom keys")


def test_a_few_names_are_listed_whole() -> None:
    error = unknown_name(Location("a.yaml"), "key", "alpha_7", MANY[:20], "fedloom keys")
    assert error.allowed == ", ".join(sorted(MANY[:20])) and not error.advice


@pytest.mark.parametrize("kind", ["method", "data set", "model"])
def test_a_wrong_component_names_the_command_that_lists_them(kind: str) -> None:
    near = registry.names(kind)[0]
    with pytest.raises(ConfigError, match=f"did you mean '{near}'") as caught:
        registry.find(kind, f"{near}x", Location("a.yaml"))
    assert caught.value.advice == f"fedloom {registry.COMMAND_BY_KIND[kind]}"
    assert len(caught.value.allowed) < 100
