"""Suggestions for a name that does not exist."""

from __future__ import annotations

import pytest

from fl.base.errors import Location, similar_name, unknown_name


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
