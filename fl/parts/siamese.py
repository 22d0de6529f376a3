"""Differentiable siamese augmentation: one random change of images, the same for a whole group.

B. Zhao, H. Bilen. Dataset Condensation with Differentiable Siamese Augmentation. ICML 2021.
arXiv:2102.08259. As in its released code are the strengths, and that one of the six kinds is drawn
at a time, each as likely as the others.

Real and virtual images of a class get the same change, and gradients pass through it to the virtual
ones. Randomness is keyed, see `fl.keyed`. As keys may be those of a stack, all six kinds are
computed and one is chosen. Shifts, flips and scalings multiply an image by a matrix on either side.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fl import keyed

KINDS = ("colour", "crop", "cutout", "flip", "scale", "rotate")
BRIGHTNESS, SATURATION, CONTRAST = 1.0, 2.0, 0.5
CROP, CUTOUT = 0.125, 0.5
"""How far a crop shifts, and how large a cutout's side is, as shares of an image's side."""
SCALE, DEGREES = 1.2, 15.0
STREAM = keyed.stream_of("siamese augmentation")


class Change(NamedTuple):
    """What is done to each group of images, [g] each.

    Attributes:
        kind: Index into `KINDS`.
        first, second, third: Numbers in [0, 1) that say how.
    """

    kind: Tensor
    first: Tensor
    second: Tensor
    third: Tensor


def drawn(key: Tensor) -> Change:
    """The change of each group, for keys int64 [g]."""
    kind, *how = keyed.uniform(key, STREAM, (4,)).unbind(-1)
    return Change((kind * len(KINDS)).long(), *how)


def siamese(x: Tensor, change: Change) -> Tensor:
    """Groups of images [g, n, channels, height, width], each group changed in one way."""

    def chosen(name: str, shape: int = 4) -> Tensor:
        return (change.kind == KINDS.index(name)).reshape(-1, *[1] * shape)

    height, width = x.shape[-2:]
    x = torch.where(chosen("colour"), coloured(x, change), x)
    rows = torch.where(chosen("crop", 2), shifted(height, CROP, change.first, x), _same(height, x))
    rows = torch.where(chosen("scale", 2), scaled(height, change.first, x), rows)
    columns = torch.where(
        chosen("crop", 2), shifted(width, CROP, change.second, x), _same(width, x)
    )
    columns = torch.where(chosen("flip", 2), flipped(width, change.first, x), columns)
    columns = torch.where(chosen("scale", 2), scaled(width, change.second, x), columns)
    x = rows[:, None, None] @ x @ columns[:, None, None].transpose(-1, -2)
    hole = cut(height, width, change.first, change.second, x)
    x = torch.where(chosen("cutout"), x * hole[:, None, None], x)
    return torch.where(chosen("rotate"), rotated(x, change.first), x)


def coloured(x: Tensor, change: Change) -> Tensor:
    """Images with their brightness changed, then their saturation, then their contrast."""
    bright, saturated, contrasted = (
        u.to(x.dtype).reshape(-1, 1, 1, 1, 1) for u in (change.first, change.second, change.third)
    )
    x = x + (bright - 0.5) * BRIGHTNESS
    grey = x.mean(2, keepdim=True)
    x = (x - grey) * (saturated * SATURATION) + grey
    level = x.mean((2, 3, 4), keepdim=True)
    return (x - level) * (contrasted + CONTRAST) + level


def _same(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)


def shifted(size: int, share: float, draw: Tensor, like: Tensor) -> Tensor:
    """Matrices [g, size, size] that shift by at most that share of the size, and leave zeros
    behind.
    """
    most = int(size * share + 0.5)
    by = (draw * (2 * most + 1)).long() - most
    place = torch.arange(size, device=like.device)
    return (place[:, None] + by[:, None, None] == place).to(like.dtype)


def flipped(size: int, draw: Tensor, like: Tensor) -> Tensor:
    """Matrices [g, size, size] that reverse the axis for draws below a half."""
    same = _same(size, like)
    return torch.where((draw < 0.5)[:, None, None], same.flip(0), same)


def scaled(size: int, draw: Tensor, like: Tensor) -> Tensor:
    """Matrices [g, size, size] that stretch an axis from its middle, bilinearly."""
    factor = draw.to(like.dtype) * (SCALE - 1 / SCALE) + 1 / SCALE
    place = torch.arange(size, dtype=like.dtype, device=like.device)
    centre = (size - 1) / 2
    source = (place - centre) * factor[:, None] + centre
    return (1 - (source[..., None] - place).abs()).clamp(min=0)


def cut(height: int, width: int, first: Tensor, second: Tensor, like: Tensor) -> Tensor:
    """Masks [g, height, width], 0 in a rectangle of half the sides around a random pixel."""
    inside = []
    for size, draw in ((height, first), (width, second)):
        side = int(size * CUTOUT + 0.5)
        begin = (draw * (size + 1 - side % 2)).long() - side // 2
        place = torch.arange(size, device=like.device)
        inside.append((place >= begin[:, None]) & (place < begin[:, None] + side))
    return 1 - (inside[0][:, :, None] & inside[1][:, None, :]).to(like.dtype)


def rotated(x: Tensor, draw: Tensor) -> Tensor:
    """Images turned by up to 15 degrees either way, bilinearly, with zeros from outside."""
    groups, count, depth, height, width = x.shape
    angle = (draw.to(x.dtype) - 0.5) * 2 * DEGREES / 180 * math.pi
    sine, cosine = (part[:, None, None] for part in (angle.sin(), angle.cos()))
    # Places of pixels from -1 to 1, as `F.affine_grid` has them, which knows no stacks.
    down, right = (
        (2 * torch.arange(size, dtype=x.dtype, device=x.device) + 1) / size - 1
        for size in (height, width)
    )
    down = down[:, None]
    grid = torch.stack([cosine * right - sine * down, sine * right + cosine * down], -1)
    flat = x.reshape(groups, count * depth, height, width)
    return F.grid_sample(flat, grid, align_corners=False).reshape(x.shape)
