"""Outputs of reference models for samples: looked up or asked for, the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import worlds
from worlds import world

from fl.api import trees
from fl.api.method import Batch, Pass, Refresh
from fl.api.trees import Tree
from fl.engine import loader
from fl.engine.batches import Schedule
from fl.engine.loader import Batches
from fl.engine.sample_arrays import Arrays

MOMENTS = {"update": "periodic", "first": 2, "every": 3, "batches": 2}
TERMS = [
    ("cosine", {"layers": ["1"], "mu": 0.5}),
    ("mk-mmd", {"layers": ["1"], "mu": 0.5, **MOMENTS}),
]
CASES: dict[str, dict[str, Any]] = {
    "moon": {"method": "moon"},
    "ditto": {"method": "ditto", "terms": TERMS},
    "fedprox": {"method": "fedprox", "terms": TERMS},
}

SAMPLES = 3 * loader.REFERENCE_BATCH_SIZE
X = np.random.default_rng(0).normal(size=(SAMPLES, 2))


def unused(*arguments: Any) -> Any:
    raise AssertionError("nothing but the reference is asked")


def part(asked: list[int], refreshes: tuple[Refresh, ...] = ()) -> Pass:
    """A pass whose reference is the samples times a number of the client's."""

    def reference(server: Tree, work: Tree, batch: Batch) -> dict[str, Any]:
        assert not torch.is_grad_enabled()
        asked.append(len(batch["x"]))
        return {"times": {"it": batch["x"] * work["by"]}}

    return Pass(unused, unused, unused, unused, refreshes=refreshes, reference=reference)


def schedule(epochs: int, extra: bool = False) -> Schedule:
    """Two clients: one with the odd samples, one with some of the even ones and half the steps."""
    draw = np.random.default_rng(1)
    held = [np.arange(1, SAMPLES, 2), np.arange(0, SAMPLES // 2, 2)]
    drawn = [np.concatenate([draw.permutation(h) for _ in range(epochs)]) for h in held]
    index = np.zeros((2, len(drawn[0]) // 8, 8), np.int64)
    for row, samples in enumerate(drawn):
        index[row, : len(samples) // 8] = samples.reshape(-1, 8)
    steps = np.array([len(samples) // 8 for samples in drawn])
    more = (np.stack([draw.permutation(h)[:30].reshape(3, 10) for h in held]),) if extra else ()
    return Schedule(index, np.ones(index.shape, bool), steps, None, more)


def batches(asked: list[int], found: Schedule, *refreshes: Refresh, **how: Any) -> Batches:
    normalisation = {"scale": 1.0, "mean": 0.0, "sd": 1.0}
    arrays = Arrays(X, np.zeros(SAMPLES), normalisation, dtype=torch.float64, **how)
    models = [({}, {"by": torch.tensor(by, dtype=torch.float64)}) for by in (2.0, -3.0)]
    return Batches(part(asked, refreshes), found, arrays, models.__getitem__)


def test_every_batch_finds_its_own_samples() -> None:
    asked: list[int] = []
    refresh = Refresh(interval=20, first_step=2, batch_count=1, look=unused, adapt=unused)
    given = schedule(epochs=3, extra=True)
    found = batches(asked, given, refresh)
    assert sum(asked) == SAMPLES // 2 + SAMPLES // 4
    assert max(asked) == loader.REFERENCE_BATCH_SIZE
    for row, by in enumerate((2.0, -3.0)):
        for step in range(given.steps[row]):
            batch = found.at(row, step)
            assert torch.equal(batch["reference"]["times"]["it"], by * batch["x"])
        extra = found.refresh_batch(0, refresh, row, step=21)
        np.testing.assert_array_equal(extra["x"], X[given.refresh_index[0][row, 1]])
        assert torch.equal(extra["reference"]["times"]["it"], by * extra["x"])
    both = found.at(slice(0, 2), slice(0, 4))
    by = torch.tensor([2.0, -3.0], dtype=torch.float64)[:, None, None, None]
    assert both["x"].shape == (2, 4, 8, 2)
    assert torch.equal(both["reference"]["times"]["it"], by * both["x"])


@pytest.mark.parametrize("ahead", [1, loader.PREFETCH_BYTES])
def test_however_many_steps_are_gathered_at_once_batches_are_the_same(
    ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "PREFETCH_BYTES", ahead)
    given = schedule(epochs=3)
    found = batches([], given)
    longest, shortest = given.steps
    counts = [count for count, _ in found.iterate_steps()]
    assert counts == [2] * shortest + [1] * (longest - shortest)
    for step, (count, batch) in enumerate(found.iterate_steps()):
        assert worlds.same(batch, found.at(slice(0, count), step))
    steps = np.array([[7, 1], [8, 2], [longest, 3], [longest + 1, 4], [0, 5]])
    apart = list(found.iterate_turns(torch.tensor([0, 1]), steps))
    assert len(apart) == len(steps)
    for batch, now in zip(apart, steps.clip(max=longest - 1), strict=True):
        for row, step in enumerate(now):
            assert worlds.same(trees.take(batch, row), found.at(row, int(step)))


def test_nothing_is_looked_up_where_it_does_not_pay_or_fit_or_batches_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    assert "reference" not in batches(asked, schedule(epochs=1)).at(0, 0)
    assert asked == []
    monkeypatch.setattr(loader, "MAX_TABLE_BYTES", SAMPLES * 3 // 4 * 2 * 8 - 1)
    assert "reference" not in batches(asked, schedule(epochs=3)).at(0, 0)
    assert asked == [loader.REFERENCE_BATCH_SIZE], "which tells how much it would be"
    monkeypatch.setattr(loader, "MAX_TABLE_BYTES", loader.MAX_TABLE_BYTES + 1)
    assert "reference" in batches(asked, schedule(epochs=3)).at(0, 0)


def test_augmented_batches_are_not_looked_up() -> None:
    asked: list[int] = []
    images = Arrays(np.zeros((SAMPLES, 1, 4, 4), np.uint8), X[:, 0], None, augmentation="crop-flip")
    assert "reference" not in Batches(part(asked), schedule(3), images, unused).at(0, 0)


@pytest.mark.parametrize("backend", ["loop", "stacked"])
@pytest.mark.parametrize("name", CASES)
def test_looked_up_is_computed_to_rounding(
    name: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember, found = loader._precompute_references, []

    def noted(*arguments: Any) -> Any:
        found.append(remember(*arguments))
        return found[-1]

    def end() -> dict[str, Any]:
        found.clear()
        return worlds.tree(worlds.run(world(**CASES[name]), backend)[0])

    monkeypatch.setattr(loader, "_precompute_references", noted)
    looked_up = end()
    assert all(known is not None for known in found), "epochs are enough to pay"
    monkeypatch.setattr(loader, "MIN_USES_PER_SAMPLE", np.inf)
    computed = end()
    assert all(known is None for known in found)
    assert worlds.distance(looked_up, computed) < 1e-10
