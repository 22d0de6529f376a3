"""Modules are loaded without the garbage collector, which then leaves them alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from fl.cli.loading import loading


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Everything is collected again after a test."""
    yield
    gc.unfreeze()


def test_what_is_loaded_is_not_looked_at_again() -> None:
    begun: list[int] = []

    def collecting(phase: str, about: dict[str, int]) -> None:
        begun.append(about["generation"])

    gc.callbacks.append(collecting)
    try:
        with loading():
            kept = [[number] for number in range(10 * gc.get_threshold()[0])]
        assert begun == []
    finally:
        gc.callbacks.remove(collecting)
    assert gc.get_freeze_count() > len(kept)
    assert gc.isenabled()
