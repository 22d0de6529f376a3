from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fl.engine.sample_arrays import Arrays

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


@pytest.mark.parametrize("resident", [2**31, 0])
def test_tokens_stay_whole_numbers(resident: int) -> None:
    x = np.array([[0, 79], [70_000, 7]], np.int32)
    arrays = Arrays(x, np.zeros(2, int), None, dtype=torch.bfloat16, max_resident_bytes=resident)
    found = arrays.inputs(torch.tensor([[1], [0]]))
    assert found.dtype == torch.int64
    assert found.tolist() == [[[70_000, 7]], [[0, 79]]]


def test_a_large_set_is_not_copied_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the file has later is what is read."""
    np.save(tmp_path / "x.npy", IMAGES)
    file = np.load(tmp_path / "x.npy", mmap_mode="r+")
    index, whole = torch.arange(2), Arrays(file, LABELS, PER_CHANNEL)
    monkeypatch.setattr("fl.engine.sample_arrays.MAX_CPU_BYTES", IMAGES.nbytes - 1)
    large = Arrays(np.load(tmp_path / "x.npy", mmap_mode="r"), LABELS, PER_CHANNEL)
    before = whole.inputs(index)
    assert torch.equal(large.inputs(index), before)
    file[0] += 1
    assert torch.equal(whole.inputs(index), before)
    assert not torch.equal(large.inputs(index)[0], before[0])


def test_mapped_and_resident_inputs_are_the_same_bits(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", IMAGES)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    index = torch.tensor([[3, 0, 3], [19, 7, 1]])
    found = [
        Arrays(x, LABELS, PER_CHANNEL, max_resident_bytes=limit).inputs(index)
        for x, limit in ((IMAGES, 2**31), (mapped, 2**31), (mapped, 0), (IMAGES, 0))
    ]
    assert found[0].shape == (2, 3, 3, 4, 5)
    assert all(torch.equal(one, found[0]) for one in found[1:])
    assert torch.equal(found[0][0, 0], found[0][0, 2])
