"""Augmentation of training batches, on the device, with a key for each sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from fl.api.training import augmentation_steps
from fl.base.errors import FedloomError
from fl.pytorch import keyed

PADDING = 4
"""Pixels of zeros around an image before it is cropped, as is usual for CIFAR."""

CROP_AND_FLIP, TURN, ROTATE = range(3)
"""Streams of a sample's key from which the steps draw."""

Augment = Callable[[Tensor, Tensor], Tensor]
"""Function of raw images [n, channels, height, width] and the key of each, int64 [n]."""


def augmentation(text: str) -> Augment | None:
    """Return the augmentation that a text names; None if it names no step.

    Args:
        text: See `fl.api.training.Training.augmentation`.
    """
    steps = [
        partial(rotate, degrees=degrees) if name == "rotate" else STEPS[name]
        for name, degrees in augmentation_steps(text)
    ]

    def augment(x: Tensor, key: Tensor) -> Tensor:
        for step in steps:
            x = step(x, key)
        return x

    return augment if steps else None


def crop(x: Tensor, key: Tensor) -> Tensor:
    """Crop images to their size, after padding with `PADDING` zeros on every side."""
    height, width = x.shape[-2:]
    row_shift, column_shift, _ = keyed.uniform(key, CROP_AND_FLIP, (3,)).unbind(-1)
    return _gather_pixels(
        torch.nn.functional.pad(x, (PADDING,) * 4),
        _crop_positions(height, row_shift)[:, :, None],
        _crop_positions(width, column_shift)[:, None, :],
    )


def flip(x: Tensor, key: Tensor) -> Tensor:
    """Mirror images from left to right with probability 1/2."""
    is_mirrored = keyed.uniform(key, CROP_AND_FLIP, (3,))[:, 2] < 0.5
    return torch.where(is_mirrored[:, None, None, None], x.flip(-1), x)


def turn(x: Tensor, key: Tensor) -> Tensor:
    """Turn images by 0, 1, 2 or 3 right angles.

    Args:
        x: Images, [n, channels, height, width].
        key: Their keys, [n].

    Raises:
        FedloomError: If the images are not square.
    """
    if x.shape[-2] != x.shape[-1]:
        shape = " x ".join(map(str, x.shape[-2:]))
        raise FedloomError(
            f"augmentation: turn needs square images, but these have {shape} pixels",
            advice="remove turn",
        )
    angles = (keyed.uniform(key, TURN) * 4).long()
    turned = torch.stack([torch.rot90(x, times, (-2, -1)) for times in range(4)], 1)
    return turned[torch.arange(len(x), device=x.device), angles]


def rotate(x: Tensor, key: Tensor, degrees: float) -> Tensor:
    """Rotate images about their centre by a random angle.

    A pixel is the nearest one of the original image, as by default in torchvision's RandomRotation;
    pixels from outside are 0.

    Args:
        x: Images, [n, channels, height, width].
        key: Their keys, [n].
        degrees: Largest angle, in either direction.
    """
    height, width = x.shape[-2:]
    angle = (2 * keyed.uniform(key, ROTATE) - 1) * math.radians(degrees)
    cosine, sine = angle.cos()[:, None, None], angle.sin()[:, None, None]
    y_offset = torch.arange(height, device=x.device)[:, None] - (height - 1) / 2
    x_offset = torch.arange(width, device=x.device)[None, :] - (width - 1) / 2
    rows = (cosine * y_offset + sine * x_offset + (height - 1) / 2).round().long()
    columns = (cosine * x_offset - sine * y_offset + (width - 1) / 2).round().long()
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    moved = _gather_pixels(x, rows.clamp(0, height - 1), columns.clamp(0, width - 1))
    return moved * inside[:, None].to(moved.dtype)


STEPS: dict[str, Augment] = {"crop": crop, "flip": flip, "turn": turn}
"""Steps by name, except `rotate`, which has degrees."""


def _gather_pixels(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return x[i, :, rows[i], columns[i]] for every image i; positions broadcast to [n, h, w]."""
    sample = torch.arange(len(x), device=x.device)[:, None, None]
    return x.movedim(1, -1)[sample, rows, columns].movedim(-1, 1)


def _crop_positions(size: int, uniform: Tensor) -> Tensor:
    """Return positions in a padded axis, [n, size], which begin at 0 to 2 PADDING."""
    begin = (uniform * (2 * PADDING + 1)).long()
    return begin[:, None] + torch.arange(size, device=uniform.device)
