"""The benchmarks measure what there is."""

from __future__ import annotations

from bench import partitions
from fl import registry


def test_every_scheme_is_measured_and_makes_as_many_clients_as_asked() -> None:
    found = partitions.calls(samples=3_000, clients=50)
    names = {text.partition("(")[0].replace("_", "-") for text in found}
    assert names == set(registry.names("partition scheme")) - {"file"}
    for text, call in found.items():
        assert call()["client"].nunique() == 50, text
