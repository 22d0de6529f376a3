"""Augmentation of training batches: all samples at once, on the device, keyed sample by sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from fl.api.training import augmentation_steps
from fl.base.errors import FedloomError
from fl.pytorch import keyed

PAD = 4
"""Pixels of zeros around an image before it is cropped, as is usual for CIFAR."""

CROP_AND_FLIP, TURN, ROTATE = range(3)
"""The streams of a sample's key that steps draw from."""

Augment = Callable[[Tensor, Tensor], Tensor]
"""Of images [n, channels, height, width], raw, and the key of each, int64 [n]."""


def augmentation(text: str) -> Augment | None:
    """The steps that a `fl.api.training.Training.augmentation` names, one after another."""
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
    """Crops of the images' own size, from the images with `PAD` zeros on every side."""
    height, width = x.shape[-2:]
    down, right, _ = keyed.uniform(key, CROP_AND_FLIP, (3,)).unbind(-1)
    return _gathered(
        torch.nn.functional.pad(x, (PAD,) * 4),
        _shifted(height, down)[:, :, None],
        _shifted(width, right)[:, None, :],
    )


def flip(x: Tensor, key: Tensor) -> Tensor:
    """Every second image, at random, from left to right."""
    mirrored = keyed.uniform(key, CROP_AND_FLIP, (3,))[:, 2] < 0.5
    return torch.where(mirrored[:, None, None, None], x.flip(-1), x)


def turn(x: Tensor, key: Tensor) -> Tensor:
    """Images turned by 0, 1, 2 or 3 right angles.

    Raises `FedloomError` for images that are not square.
    """
    if x.shape[-2] != x.shape[-1]:
        shape = " x ".join(map(str, x.shape[-2:]))
        raise FedloomError(
            f"augmentation: images of {shape} cannot be turned. Allowed: square ones"
        )
    angles = (keyed.uniform(key, TURN) * 4).long()
    turned = torch.stack([torch.rot90(x, times, (-2, -1)) for times in range(4)], 1)
    return turned[torch.arange(len(x), device=x.device), angles]


def rotate(x: Tensor, key: Tensor, degrees: float) -> Tensor:
    """Images rotated about their centre by up to ``degrees``, either way.

    A pixel is the nearest one of the image, as by default in torchvision's RandomRotation; what
    comes from outside is 0.
    """
    height, width = x.shape[-2:]
    angle = (2 * keyed.uniform(key, ROTATE) - 1) * math.radians(degrees)
    cosine, sine = angle.cos()[:, None, None], angle.sin()[:, None, None]
    down = torch.arange(height, device=x.device)[:, None] - (height - 1) / 2
    right = torch.arange(width, device=x.device)[None, :] - (width - 1) / 2
    rows = (cosine * down + sine * right + (height - 1) / 2).round().long()
    columns = (cosine * right - sine * down + (width - 1) / 2).round().long()
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    moved = _gathered(x, rows.clamp(0, height - 1), columns.clamp(0, width - 1))
    return moved * inside[:, None].to(moved.dtype)


STEPS: dict[str, Augment] = {"crop": crop, "flip": flip, "turn": turn}
"""By name; `rotate` is asked for with its degrees."""


def _gathered(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """x[i, :, rows[i], columns[i]] for every image i; positions broadcast to [n, h, w]."""
    sample = torch.arange(len(x), device=x.device)[:, None, None]
    return x.movedim(1, -1)[sample, rows, columns].movedim(-1, 1)


def _shifted(size: int, draw: Tensor) -> Tensor:
    """Positions in a padded axis, [n, size], beginning at 0 to 2 PAD."""
    begin = (draw * (2 * PAD + 1)).long()
    return begin[:, None] + torch.arange(size, device=draw.device)
