"""Augmentation of training batches: all samples at once, on the device, keyed sample by sample."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fl.pytorch import keyed

PAD = 4
"""Pixels of zeros around an image before it is cropped, as is usual for CIFAR."""


def crop_flip(x: Tensor, key: Tensor) -> Tensor:
    """Crop each image at random, and flip it or not.

    The crop has the image's own size and is taken from the image with `PAD` zeros on every side.
    Every second image, at random, is flipped from left to right.

    Args:
        x: Images [n, channels, height, width], raw.
        key: Of each image, int64 [n], see `fl.pytorch.keyed`.
    """
    height, width = x.shape[-2:]
    down, right, flip = keyed.uniform(key, 0, (3,)).unbind(-1)
    rows = _shifted(height, down)
    columns = _shifted(width, right)
    columns = torch.where((flip < 0.5)[:, None], columns.flip(1), columns)
    padded = torch.nn.functional.pad(x, (PAD,) * 4)
    sample = torch.arange(len(x), device=x.device)[:, None, None]
    return padded.movedim(1, -1)[sample, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


def _shifted(size: int, draw: Tensor) -> Tensor:
    """Positions in a padded axis, [n, size], beginning at 0 to 2 PAD."""
    begin = (draw * (2 * PAD + 1)).long()
    return begin[:, None] + torch.arange(size, device=draw.device)


AUGMENTATIONS: dict[str, Callable[[Tensor, Tensor], Tensor] | None] = {
    "none": None,
    "crop-flip": crop_flip,
}
"""By the name that `fl.api.training.Training.augmentation` has."""
