"""Differentiable siamese augmentation: one random change of images for a whole group.

B. Zhao, H. Bilen. Dataset Condensation with Differentiable Siamese Augmentation. ICML 2021.
arXiv:2102.08259. As in its released code are the strengths, and that one of the six kinds is drawn
at a time, each with the same probability.

Real and virtual images of a class get the same change, and gradients pass through it to the virtual
ones. Randomness is keyed, see `fl.pytorch.keyed`. For stacked keys, and on a GPU, all six kinds are
computed and one is chosen; otherwise each group's own. Shifts, flips and scalings multiply an image
by a matrix on either side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import keyed
from fl.pytorch import torch_internals

AUGMENTATIONS = ("colour", "crop", "cutout", "flip", "scale", "rotate")
BRIGHTNESS, SATURATION, CONTRAST = 1.0, 2.0, 0.5
CROP, CUTOUT = 0.125, 0.5
"""The largest shift of a crop and the side of a cutout, as shares of an image's side."""
SCALE, DEGREES = 1.2, 15.0
CHANGE_STREAM = keyed.stream_number("siamese augmentation")


class Change(NamedTuple):
    """The change of each group of images, [g] each.

    Attributes:
        kind: An index into `AUGMENTATIONS`.
        first: A number in [0, 1) that decides the strength.
        second: A second such number.
        third: A third such number.
    """

    kind: Tensor
    first: Tensor
    second: Tensor
    third: Tensor


def draw_change(key: Tensor) -> Change:
    """Draw the change of each group by keys, int64 [g]."""
    kind, *amounts = keyed.uniform(key, CHANGE_STREAM, (4,)).unbind(-1)
    return Change((kind * len(AUGMENTATIONS)).long(), *amounts)


def augment_groups(x: Tensor, change: Change) -> Tensor:
    """Change groups of images [g, n, channels, height, width], each group in one way."""
    batched = torch_internals.is_batched(x) or torch_internals.is_batched(change.kind)
    if batched or x.device.type != "cpu" or torch.compiler.is_compiling():
        return _augment_by_choice(x, change)
    kinds = change.kind.tolist()
    augmented: list[Tensor] = []
    order: list[int] = []
    for kind in sorted(set(kinds)):
        rows = [row for row, row_kind in enumerate(kinds) if row_kind == kind]
        augmented.append(
            AUGMENT_BY_NAME[AUGMENTATIONS[kind]](
                x[rows], Change(*(values[rows] for values in change))
            )
        )
        order += rows
    return torch.cat(augmented)[torch.tensor(order).argsort()]


def _augment_by_choice(x: Tensor, change: Change) -> Tensor:
    """Compute all kinds of changes, and choose one for each group."""

    def is_kind(name: str) -> Tensor:
        return (change.kind == AUGMENTATIONS.index(name)).reshape(-1, 1, 1, 1, 1)

    def replace_where_chosen(name: str, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        is_chosen = is_kind(name)[..., 0, 0]
        matrices = matrices_by_name[name](x, change)
        return torch.where(is_chosen, matrices[0], rows), torch.where(
            is_chosen, matrices[1], columns
        )

    matrices_by_name = {"crop": _shifts, "flip": _flips, "scale": _scales}
    rows, columns = (_identity(size, x) for size in x.shape[-2:])
    for name in matrices_by_name:
        rows, columns = replace_where_chosen(name, rows, columns)
    x = torch.where(is_kind("colour"), change_colour(x, change), x)
    x = mix_pixels(rows, x, columns)
    x = torch.where(is_kind("cutout"), cut_hole(x, change), x)
    return torch.where(is_kind("rotate"), rotate(x, change.first), x)


def mix_pixels(rows: Tensor, x: Tensor, columns: Tensor) -> Tensor:
    """Mix rows and columns of images by matrices [g, size, size]."""
    return rows[..., None, None, :, :] @ x @ columns[..., None, None, :, :].transpose(-1, -2)


def _shifts(x: Tensor, change: Change) -> tuple[Tensor, Tensor]:
    height, width = x.shape[-2:]
    return shift_matrices(height, CROP, change.first, x), shift_matrices(
        width, CROP, change.second, x
    )


def _flips(x: Tensor, change: Change) -> tuple[Tensor, Tensor]:
    return _identity(x.shape[-2], x), flip_matrices(x.shape[-1], change.first, x)


def _scales(x: Tensor, change: Change) -> tuple[Tensor, Tensor]:
    height, width = x.shape[-2:]
    return scale_matrices(height, change.first, x), scale_matrices(width, change.second, x)


def cut_hole(x: Tensor, change: Change) -> Tensor:
    """Set a rectangle of images to zero."""
    height, width = x.shape[-2:]
    return x * hole_masks(height, width, change.first, change.second, x)[:, None, None]


def change_colour(x: Tensor, change: Change) -> Tensor:
    """Change the brightness of images, then their saturation, then their contrast."""
    bright, saturated, contrasted = (
        u.to(x.dtype).reshape(-1, 1, 1, 1, 1) for u in (change.first, change.second, change.third)
    )
    x = x + (bright - 0.5) * BRIGHTNESS
    grey = x.mean(2, keepdim=True)
    x = (x - grey) * (saturated * SATURATION) + grey
    level = x.mean((2, 3, 4), keepdim=True)
    return (x - level) * (contrasted + CONTRAST) + level


def _identity(size: int, example: Tensor) -> Tensor:
    return torch.eye(size, dtype=example.dtype, device=example.device)


def shift_matrices(size: int, share: float, draw: Tensor, example: Tensor) -> Tensor:
    """Return matrices [g, size, size] that shift by at most ``share`` of the size.

    Zeros fill the rest.
    """
    max_shift = int(size * share + 0.5)
    shifts = (draw * (2 * max_shift + 1)).long() - max_shift
    position = torch.arange(size, device=example.device)
    return (position[:, None] + shifts[:, None, None] == position).to(example.dtype)


def flip_matrices(size: int, draw: Tensor, example: Tensor) -> Tensor:
    """Return matrices [g, size, size] that reverse the axis for draws below a half."""
    identity = _identity(size, example)
    return torch.where((draw < 0.5)[:, None, None], identity.flip(0), identity)


def scale_matrices(size: int, draw: Tensor, example: Tensor) -> Tensor:
    """Return matrices [g, size, size] that stretch an axis from its middle, bilinearly."""
    factor = draw.to(example.dtype) * (SCALE - 1 / SCALE) + 1 / SCALE
    position = torch.arange(size, dtype=example.dtype, device=example.device)
    centre = (size - 1) / 2
    source = (position - centre) * factor[:, None] + centre
    return (1 - (source[..., None] - position).abs()).clamp(min=0)


def hole_masks(height: int, width: int, first: Tensor, second: Tensor, example: Tensor) -> Tensor:
    """Return masks [g, height, width], 0 in a rectangle of half the sides around a random pixel."""
    inside = []
    for size, draw in ((height, first), (width, second)):
        side = int(size * CUTOUT + 0.5)
        start = (draw * (size + 1 - side % 2)).long() - side // 2
        position = torch.arange(size, device=example.device)
        inside.append((position >= start[:, None]) & (position < start[:, None] + side))
    return 1 - (inside[0][:, :, None] & inside[1][:, None, :]).to(example.dtype)


def rotate(x: Tensor, draw: Tensor) -> Tensor:
    """Rotate images by up to 15 degrees either way, bilinearly, with zeros from outside."""
    groups, count, depth, height, width = x.shape
    angle = (draw.to(x.dtype) - 0.5) * 2 * DEGREES / 180 * math.pi
    sine, cosine = (numbers[:, None, None] for numbers in (angle.sin(), angle.cos()))
    # Positions of pixels from -1 to 1, like those of `F.affine_grid`, which takes no stacks.
    y_position, x_position = (
        (2 * torch.arange(size, dtype=x.dtype, device=x.device) + 1) / size - 1
        for size in (height, width)
    )
    y_position = y_position[:, None]
    grid = torch.stack(
        [cosine * x_position - sine * y_position, sine * x_position + cosine * y_position], -1
    )
    flat = x.reshape(groups, count * depth, height, width)
    return F.grid_sample(flat, grid, align_corners=False).reshape(x.shape)


def _augment_by_matrices(
    matrices: Callable[[Tensor, Change], tuple[Tensor, Tensor]],
) -> Callable[[Tensor, Change], Tensor]:
    def augment(x: Tensor, change: Change) -> Tensor:
        rows, columns = matrices(x, change)
        return mix_pixels(rows, x, columns)

    return augment


AUGMENT_BY_NAME: dict[str, Callable[[Tensor, Change], Tensor]] = {
    "colour": change_colour,
    "crop": _augment_by_matrices(_shifts),
    "cutout": cut_hole,
    "flip": _augment_by_matrices(_flips),
    "scale": _augment_by_matrices(_scales),
    "rotate": lambda x, change: rotate(x, change.first),
}
