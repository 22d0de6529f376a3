from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fl.api.method import Sampling
from fl.api.training import Training
from fl.engine.batches import Schedule, count_steps, schedule

HELD = [np.arange(100, 123), np.arange(5), np.arange(40, 80)]
CLIENTS = [4, 0, 7]


def batches(
    samples: list[np.ndarray] = HELD,
    clients: list[int] = CLIENTS,
    seed: int = 0,
    round: int = 1,
    **training: Any,
) -> Schedule:
    return schedule(samples, clients, Training(**{"batch_size": 8, **training}), seed, round)


def of(found: Schedule, row: int) -> tuple[np.ndarray, np.ndarray]:
    """A client's own steps: sample numbers and weights, [steps, b] each."""
    steps = found.steps[row]
    return found.index[row, :steps], found.weight[row, :steps]


def test_every_sample_counts_exactly_once_in_an_epoch() -> None:
    found = batches()
    assert found.steps.tolist() == [3, 1, 5]
    assert found.index.shape == found.weight.shape == (3, 5, 8)
    for row, held in enumerate(HELD):
        index, weight = of(found, row)
        assert sorted(index[weight]) == held.tolist()
        assert not np.array_equal(index[weight], held), "they are shuffled"


def test_what_a_batch_lacks_is_filled_with_own_samples_that_do_not_count() -> None:
    index, weight = of(batches(), 0)
    assert weight.sum(axis=1).tolist() == [8, 8, 7]
    assert set(index.ravel()) == set(HELD[0])
    assert len(set(index[2])) == 8, "the fill is another sample than those of its batch"


def test_a_client_smaller_than_a_batch_has_one_full_batch() -> None:
    index, weight = of(batches(), 1)
    assert weight.tolist() == [[True] * 5 + [False] * 3]
    assert set(index[0, :5]) == set(HELD[1])
    assert set(index[0, 5:]) <= set(HELD[1])


def test_drop_last_leaves_out_what_does_not_fill_a_batch() -> None:
    found = batches(drop_last=True)
    assert found.steps.tolist() == [2, 1, 5]
    index, weight = of(found, 0)
    assert weight.all()
    assert len(set(index.ravel())) == 16
    assert of(found, 1)[1].sum() == 5, "the only batch is kept"
    assert sorted(of(found, 2)[0].ravel()) == HELD[2].tolist()


@pytest.mark.parametrize("steps", [1, 7])
def test_local_steps_cut_the_epochs_that_they_need(steps: int) -> None:
    found = batches(local_steps=steps)
    assert found.steps.tolist() == [steps] * 3
    epochs = of(batches(local_epochs=7), 0)
    for some, whole in zip(of(found, 0), epochs, strict=True):
        assert np.array_equal(some, whole[:steps])


@pytest.mark.parametrize(
    "settings",
    [{}, {"local_epochs": 3}, {"local_steps": 5}, {"local_epochs": 2, "drop_last": True}],
)
def test_steps_of_a_round_are_known_without_drawing_its_batches(settings: dict[str, Any]) -> None:
    training = Training(batch_size=4, **settings)
    held = [np.arange(count) for count in range(13)]
    drawn = schedule(held, range(13), training, 0, 1)
    assert count_steps(np.arange(13), training).tolist() == drawn.steps.tolist()


def test_batches_by_class_give_a_client_without_samples_no_step() -> None:
    held, labels = [np.arange(0), np.arange(6)], [np.arange(0), np.repeat([0, 1], 3)]
    training, sampling = Training(batch_size=4), Sampling(per_class=2)
    found = schedule(held, [0, 1], training, 0, 1, sampling=sampling, labels=labels, classes=2)
    assert found.steps.tolist() == [0, 2]
    assert not found.weight[0].any() and found.weight[1].all()
    assert (found.index[1] < 3).tolist() == [[True, True, False, False]] * 2


def test_the_order_is_keyed_by_seed_client_and_round() -> None:
    index, _ = of(batches(), 0)
    for same in (batches(), batches([HELD[2], HELD[0]], [7, 4])):
        row = 0 if len(same.steps) == 3 else 1
        assert np.array_equal(of(same, row)[0], index)
    others = [batches(seed=1), batches(round=2), batches(clients=[5, 0, 7])]
    for other in others:
        assert not np.array_equal(of(other, 0)[0], index)
        assert set(of(other, 0)[0].ravel()) == set(HELD[0])
