from __future__ import annotations

import numpy as np
import torch

from fl.engine.arrays import Arrays
from fl.engine.augment import PAD, crop_flip

DRAW = np.random.default_rng(0)
IMAGES = DRAW.integers(1, 256, (400, 3, 6, 8), dtype=np.uint8)
KEYS = torch.arange(400) * 977


def test_each_image_is_a_crop_of_itself_perhaps_mirrored() -> None:
    found = crop_flip(torch.from_numpy(IMAGES), KEYS).numpy()
    assert found.dtype == np.uint8
    seen = set()
    for image, got in zip(IMAGES, found, strict=True):
        padded = np.pad(image, [(0, 0), (PAD, PAD), (PAD, PAD)])
        crops = {
            (down, right, mirrored): crop[..., ::-1] if mirrored else crop
            for down in range(2 * PAD + 1)
            for right in range(2 * PAD + 1)
            for mirrored in (False, True)
            for crop in [padded[:, down : down + 6, right : right + 8]]
        }
        fits = [place for place, crop in crops.items() if np.array_equal(crop, got)]
        assert len(fits) == 1
        seen.update(fits)
    assert {down for down, _, _ in seen} == {right for _, right, _ in seen} == set(range(9))
    assert {mirrored for _, _, mirrored in seen} == {False, True}


def test_a_sample_depends_on_its_own_key_alone() -> None:
    images = torch.from_numpy(IMAGES)
    assert torch.equal(crop_flip(images[5:9], KEYS[5:9]), crop_flip(images, KEYS)[5:9])


def test_training_batches_are_augmented_before_they_are_normalised_and_others_not() -> None:
    half = {"scale": 1 / 255, "mean": 0.5, "sd": 0.5}
    plain = Arrays(IMAGES, np.zeros(400), half)
    augmented = Arrays(IMAGES, np.zeros(400), half, augmentation="crop-flip")
    assert (plain.random, augmented.random) == (False, True)
    index, key = torch.arange(400).reshape(100, 4), KEYS.reshape(100, 4)
    assert torch.equal(augmented.inputs(index), plain.inputs(index))
    cropped = crop_flip(torch.from_numpy(IMAGES), KEYS).reshape(100, 4, 3, 6, 8)
    found = augmented.batch(index, torch.ones_like(index), key)
    torch.testing.assert_close(found["x"], (cropped.float() / 255 - 0.5) / 0.5)
    assert torch.equal(found["key"], key)
    assert float(found["x"].min()) == -1.0, "what lies outside an image is black"
