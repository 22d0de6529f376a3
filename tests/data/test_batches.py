from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fl.data.batches import Arrays, Schedule, schedule, steps_of
from fl.training import Training

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


def test_several_epochs_each_have_every_sample_in_their_own_order() -> None:
    index, weight = of(batches(local_epochs=3), 0)
    assert len(index) == 9
    orders = [index[e : e + 3][weight[e : e + 3]].tolist() for e in (0, 3, 6)]
    assert [sorted(order) for order in orders] == [HELD[0].tolist()] * 3
    assert len(set(map(tuple, orders))) == 3


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


def test_one_sample_fills_a_batch() -> None:
    index, weight = of(batches([np.array([9])], [0]), 0)
    assert index.tolist() == [[9] * 8]
    assert weight.sum() == 1


def test_rows_of_steps_that_a_client_does_not_take_are_zeros() -> None:
    found = batches()
    assert not found.index[1, 1:].any()
    assert not found.weight[1, 1:].any()


def test_drop_last_leaves_out_what_does_not_fill_a_batch() -> None:
    found = batches(drop_last=True)
    assert found.steps.tolist() == [2, 1, 5]
    index, weight = of(found, 0)
    assert weight.all()
    assert len(set(index.ravel())) == 16
    assert of(found, 1)[1].sum() == 5, "the only batch is kept"
    assert sorted(of(found, 2)[0].ravel()) == HELD[2].tolist()


def test_drop_last_drops_other_samples_in_another_epoch() -> None:
    index, _ = of(batches(drop_last=True, local_epochs=6), 0)
    assert set(index.ravel()) == set(HELD[0])


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7])
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
    assert steps_of(np.arange(13), training).tolist() == drawn.steps.tolist()


def test_the_order_is_keyed_by_seed_client_and_round() -> None:
    index, _ = of(batches(), 0)
    for same in (batches(), batches([HELD[2], HELD[0]], [7, 4])):
        row = 0 if len(same.steps) == 3 else 1
        assert np.array_equal(of(same, row)[0], index)
    others = [batches(seed=1), batches(round=2), batches(clients=[5, 0, 7])]
    for other in others:
        assert not np.array_equal(of(other, 0)[0], index)
        assert set(of(other, 0)[0].ravel()) == set(HELD[0])


def test_two_clients_with_the_same_samples_have_orders_of_their_own() -> None:
    found = batches([HELD[0], HELD[0]], [0, 1])
    assert not np.array_equal(of(found, 0)[0], of(found, 1)[0])


# Arrays


IMAGES = np.random.default_rng(0).integers(0, 256, (20, 3, 4, 5)).astype(np.uint8)
LABELS = np.arange(20, dtype=np.int32) % 4
PER_CHANNEL = {"scale": 1 / 255, "mean": [0.5, 0.25, 0.125], "sd": [0.5, 2.0, 4.0]}


def test_inputs_are_normalised_per_channel() -> None:
    arrays = Arrays(IMAGES, LABELS, PER_CHANNEL, dtype=torch.float64)
    found = arrays.inputs(torch.tensor([3, 17]))
    raw = IMAGES[[3, 17]] / 255
    for channel, (mean, sd) in enumerate([(0.5, 0.5), (0.25, 2.0), (0.125, 4.0)]):
        expected = (raw[:, channel] - mean) / sd
        np.testing.assert_allclose(found[:, channel].numpy(), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("shape", [(20,), (20, 6), (20, 3, 4, 5)])
def test_inputs_are_normalised_by_one_number_each(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    arrays = Arrays(x, LABELS, {"scale": 2.0, "mean": -1.0, "sd": 4.0})
    found = arrays.inputs(torch.tensor([5, 0, 5]))
    assert found.dtype == torch.float32
    expected = (x[[5, 0, 5]].astype(np.float64) * 2 + 1) / 4
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-6)


def test_one_number_per_feature_of_flat_inputs() -> None:
    x = np.array([[1.0, 10.0], [3.0, 30.0]])
    arrays = Arrays(x, np.zeros(2, int), {"scale": 1.0, "mean": [1.0, 10.0], "sd": [2.0, 5.0]})
    assert arrays.inputs(torch.tensor([0, 1])).tolist() == [[0.0, 0.0], [1.0, 4.0]]


@pytest.mark.parametrize("resident", [2**31, 0])
def test_tokens_stay_whole_numbers(resident: int) -> None:
    x = np.array([[0, 79], [70_000, 7]], np.int32)
    arrays = Arrays(x, np.zeros(2, int), None, dtype=torch.bfloat16, resident=resident)
    found = arrays.inputs(torch.tensor([[1], [0]]))
    assert found.dtype == torch.int64
    assert found.tolist() == [[[70_000, 7]], [[0, 79]]]


def test_mapped_and_resident_inputs_are_the_same_bits(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", IMAGES)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    index = torch.tensor([[3, 0, 3], [19, 7, 1]])
    found = [
        Arrays(x, LABELS, PER_CHANNEL, resident=limit).inputs(index)
        for x, limit in ((IMAGES, 2**31), (mapped, 2**31), (mapped, 0), (IMAGES, 0))
    ]
    assert found[0].shape == (2, 3, 3, 4, 5)
    assert all(torch.equal(one, found[0]) for one in found[1:])
    assert torch.equal(found[0][0, 0], found[0][0, 2])


def test_a_batch_has_inputs_labels_and_weights_of_one_shape() -> None:
    arrays = Arrays(IMAGES, LABELS, PER_CHANNEL, dtype=torch.float64)
    index = torch.tensor([[3, 0], [19, 7]])
    batch = arrays.batch(index, torch.tensor([[True, False], [True, True]]))
    assert torch.equal(batch["x"], arrays.inputs(index))
    assert batch["y"].dtype == torch.int64
    assert batch["y"].tolist() == [[3, 0], [3, 3]]
    assert batch["weight"].dtype == torch.float64
    assert batch["weight"].tolist() == [[1.0, 0.0], [1.0, 1.0]]
