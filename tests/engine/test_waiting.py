"""Steps on a card never wait for it: whatever they ask of it is asked ahead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from worlds import world

from fl.engine import backends, engine
from fl.engine.backends import PassResult

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim")
"""Operations whose result the host must know."""


class Refusing(TorchDispatchMode):
    """Inside, an operation that would wait for a card is an error, on the CPU too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in WAITING, func
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def strict() -> Iterator[None]:
    """Inside, torch itself refuses every operation that waits for the card."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def watched_passes(device: str, watch: AbstractContextManager[Any]) -> int:
    """A round of a method with a term and a reference model, and then one with ``watch`` around all
    steps of each pass; how many passes these were.
    """
    drift = [("cosine", {"layers": ["1"], "mu": 0.5})]
    run = world("ditto", "mlp", terms=drift, device=device)
    state, _ = engine.run_round(run.method, run.begin(), run.round_schedule(1), "stacked")
    passes = 0

    def stacked(*arguments: Any) -> PassResult:
        nonlocal passes
        passes += 1
        with watch:
            return backends.stacked(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(backends.BACKENDS, "stacked", stacked)
        engine.run_round(run.method, state, run.round_schedule(2), "stacked")
    return passes


def test_steps_ask_for_nothing_that_a_card_would_have_to_finish() -> None:
    assert watched_passes("cpu", Refusing()) > 0
    with pytest.raises(AssertionError, match="_local_scalar_dense"), Refusing():
        torch.ones(1).item()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no card here")
def test_steps_do_not_wait_for_the_card() -> None:
    assert watched_passes("cuda", strict()) > 0
