from __future__ import annotations

import numpy as np
import pytest
import torch

from fl.api.training import augmentation_steps
from fl.base.errors import FedloomError
from fl.engine.sample_arrays import PADDING, ROTATE, Arrays, augmentation_function
from fl.pytorch import keyed

DRAW = np.random.default_rng(0)
IMAGES = DRAW.integers(1, 256, (400, 3, 6, 8), dtype=np.uint8)
KEYS = torch.arange(400) * 977


def augmented(text: str, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    augment = augmentation_function(text)
    assert augment is not None
    return augment(images, keys)


def test_each_image_is_a_crop_of_itself_perhaps_mirrored() -> None:
    found = augmented("crop-flip", torch.from_numpy(IMAGES), KEYS).numpy()
    assert found.dtype == np.uint8
    seen = set()
    for image, got in zip(IMAGES, found, strict=True):
        padded = np.pad(image, [(0, 0), (PADDING, PADDING), (PADDING, PADDING)])
        crops = {
            (down, right, mirrored): crop[..., ::-1] if mirrored else crop
            for down in range(2 * PADDING + 1)
            for right in range(2 * PADDING + 1)
            for mirrored in (False, True)
            for crop in [padded[:, down : down + 6, right : right + 8]]
        }
        fits = [place for place, crop in crops.items() if np.array_equal(crop, got)]
        assert len(fits) == 1
        seen.update(fits)
    assert {down for down, _, _ in seen} == {right for _, right, _ in seen} == set(range(9))
    assert {mirrored for _, _, mirrored in seen} == {False, True}


@pytest.mark.parametrize("text", ["crop-flip", "flip-rotate30", "turn"])
def test_a_sample_depends_on_its_own_key_alone(text: str) -> None:
    images = torch.from_numpy(IMAGES)[..., :6]
    assert torch.equal(augmented(text, images[5:9], KEYS[5:9]), augmented(text, images, KEYS)[5:9])


def test_training_batches_are_augmented_before_they_are_normalised_and_others_not() -> None:
    half = {"scale": 1 / 255, "mean": 0.5, "sd": 0.5}
    plain = Arrays(IMAGES, np.zeros(400), half)
    moved = Arrays(IMAGES, np.zeros(400), half, augmentation="crop-flip")
    assert (plain.random, moved.random) == (False, True)
    index, key = torch.arange(400).reshape(100, 4), KEYS.reshape(100, 4)
    assert torch.equal(moved.inputs(index), plain.inputs(index))
    cropped = augmented("crop-flip", torch.from_numpy(IMAGES), KEYS).reshape(100, 4, 3, 6, 8)
    found = moved.batch(index, torch.ones_like(index), key)
    torch.testing.assert_close(found["x"], (cropped.float() / 255 - 0.5) / 0.5)
    assert torch.equal(found["key"], key)
    assert float(found["x"].min()) == -1.0, "what lies outside an image is black"


def test_turned_images_are_at_right_angles_and_square() -> None:
    images = torch.from_numpy(IMAGES)[..., :6]
    seen = set()
    for image, got in zip(images, augmented("turn", images, KEYS), strict=True):
        [times] = [k for k in range(4) if torch.equal(torch.rot90(image, k, (-2, -1)), got)]
        seen.add(times)
    assert seen == {0, 1, 2, 3}
    with pytest.raises(FedloomError, match="turn needs square images, but these have 6 x 8 pixels"):
        augmented("turn", torch.from_numpy(IMAGES), KEYS)


def test_rotations_are_those_of_torchvision_up_to_the_degrees_asked_for() -> None:
    pytest.importorskip("fl.pytorch.vision")
    functional = pytest.importorskip("torchvision.transforms.functional")
    images = torch.from_numpy(DRAW.integers(1, 256, (60, 3, 15, 11), dtype=np.uint8))
    angles = (2 * keyed.uniform(KEYS[:60], ROTATE) - 1) * 30
    assert angles.min() < -20
    assert angles.max() > 20
    for image, angle, got in zip(
        images, angles, augmented("rotate30", images, KEYS[:60]), strict=True
    ):
        expected = functional.rotate(image, float(angle))
        # Where a source lies half-way between two pixels, rounding decides.
        assert (expected != got).float().mean() < 0.02


def test_masks_move_with_their_images() -> None:
    images = DRAW.integers(0, 2, (40, 1, 7, 7), dtype=np.uint8)
    scenes = Arrays(images, images[:, 0], None, augmentation="crop-flip-turn-rotate20")
    index = torch.arange(40).reshape(8, 5)
    batch = scenes.batch(index, torch.ones_like(index), KEYS[:40].reshape(8, 5))
    assert torch.equal(batch["x"][:, :, 0].long(), batch["y"])
    assert not torch.equal(batch["y"], scenes.labels(index))


def test_steps_are_named_in_their_order() -> None:
    assert augmentation_function("none") is None
    assert augmentation_steps("rotate15-flip") == [("rotate", 15.0), ("flip", 0.0)]
    for text in ("", "crop flip", "rotate", "rotate0", "rotate181", "flip-flip"):
        with pytest.raises(ValueError, match=r"is unknown|appears twice"):
            augmentation_steps(text)
