"""The samples of a data set as tensors: inputs, labels and batches by sample numbers.

Training batches are augmented on the device, with a key for each sample.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.protocols import Batch
from fl.api.training import augmentation_steps
from fl.base.errors import FedloomError
from fl.data.dataset import Modality
from fl.pytorch import keyed

IMAGE_DIMS = 3
"""Number of dimensions of an image: channels, height and width."""

MAX_GPU_BYTES, MAX_CPU_BYTES = 2**31, 2**28
"""Largest data sets that are copied as a whole, on a GPU and on a CPU. On a CPU a copy saves only
the first reading of the file, and also contains samples of clients that never take part.
"""


Normalisation = Mapping[str, float | list[float] | str | None]
"""``scale``, ``mean`` and ``sd``, each a number or a list with one number for each channel."""


class Arrays:
    """The samples of a data set, from which batches are gathered on a device.

    Inputs become ``(x * scale - mean) / sd`` in the run's precision; scale, mean and sd are one
    number each, or one for each channel. Inputs in float64 stay in it until they are normalised.
    Without a normalisation, inputs are tokens, which stay whole numbers (int64).

    Args:
        x: Inputs, [samples, ...]; may be a memory map.
        y: Labels: a whole number for each sample, or a mask, or a target (float); may be a memory
            map.
        normalisation: ``scale``, ``mean`` and ``sd``; None for tokens.
        device: Device of the batches.
        dtype: Type of normalised inputs.
        max_resident_bytes: Largest data set that is copied to the device as a whole; larger ones
            are gathered batch by batch. By default `MAX_GPU_BYTES` or `MAX_CPU_BYTES`.
        augmentation: Augmentation of training batches, and of masks with their images, see
            `fl.engine.sample_arrays`.
        label_normalisation: ``mean`` and ``sd``, a number each, of targets; None: they stay as they
            are.

    Attributes:
        normalisation: Normalisation of the inputs.
        by_input: Arrays by name of the input, if samples have several inputs; else empty.
        label_mean: Mean of targets, which is subtracted; 0 if they stay as they are.
        label_sd: Deviation of targets, by which they are divided; 1 if they stay as they are.
        begin: Number of the first of these samples in ``whole``.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        normalisation: Normalisation | None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        max_resident_bytes: int | None = None,
        augmentation: str = "none",
        label_normalisation: Normalisation | None = None,
    ) -> None:
        self.device, self.dtype = torch.device(device), dtype
        self._whole: Arrays | None = None
        self.begin = 0
        self._affine: tuple[Tensor, Tensor] | None = None
        self.normalisation = normalisation
        self.by_input: dict[str, Arrays] = {}
        if normalisation is not None:
            input_type = torch.float64 if x.dtype == np.float64 else dtype
            self._affine = affine(normalisation, x.ndim - 2, self.device, input_type)
        self._augment = augmentation_function(augmentation)
        self.label_mean, self.label_sd = (
            float(np.squeeze(np.asarray((label_normalisation or {}).get(key, default), np.float64)))
            for key, default in (("mean", 0.0), ("sd", 1.0))
        )
        if y.dtype.kind == "f":
            y = (np.asarray(y, np.float64) - self.label_mean) / self.label_sd
            self._y = torch.from_numpy(y).to(self.device, dtype)
        else:
            # Masks keep their small type until a batch is made of them.
            label_type = np.int64 if y.ndim == 1 else y.dtype
            self._y = torch.from_numpy(np.array(y, dtype=label_type)).to(self.device)
        self._x: Tensor | None = None
        self._source = x
        if max_resident_bytes is None:
            max_resident_bytes = MAX_CPU_BYTES if self.device.type == "cpu" else MAX_GPU_BYTES
        if x.nbytes <= max_resident_bytes:
            self._x = torch.from_numpy(np.array(x)).to(self.device)
            if self._augment is None and self._x.is_floating_point():
                self._x, self._affine = self._normalise(self._x), None

    @cached_property
    def _source_tensor(self) -> Tensor:
        """The inputs without a copy, usually in a memory-mapped file."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(np.asarray(self._source))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an input; () if samples have several inputs, see ``shapes``."""
        return self._source.shape[1:]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each input by its name; empty if samples have one input."""
        return {}

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self._source)

    @property
    def whole(self) -> Arrays:
        """The samples of several draws, of which these are some, see `join_draws`; else these."""
        return self._whole or self

    @property
    def random(self) -> bool:
        """Whether training batches need keys."""
        return self._augment is not None

    def inputs(self, index: Tensor, key: Tensor | None = None) -> Any:
        """Return normalised inputs.

        Args:
            index: Sample numbers, of any shape.
            key: Key of each sample, to augment inputs like training batches; None: no augmentation.

        Returns:
            Inputs, [*index.shape, ...]; a tree of them if samples have several inputs.
        """
        numbers = index.reshape(-1)
        if self._x is not None:
            x = trees.rows(self._x, numbers)
        else:
            x = trees.rows(self._source_tensor, numbers.cpu()).to(self.device)
        if self._augment is not None and key is not None:
            x = self._augment(x, key.reshape(-1))
        x = self._normalise(x)
        return x.reshape(*index.shape, *x.shape[1:])

    def pixels(self, inputs: Tensor) -> Tensor:
        """Undo the normalisation of images.

        Args:
            inputs: Normalised images, [..., channels, height, width].

        Returns:
            x * scale in float64, which is from 0 to 1 for images; the inputs themselves if nothing
            is normalised.
        """
        pixels = inputs.double().cpu()
        if self.normalisation is None:
            return pixels
        sd, mean = (
            torch.tensor(self.normalisation[k], dtype=torch.float64) for k in ("sd", "mean")
        )
        sd, mean = (t.reshape(-1, 1, 1) if t.dim() else t for t in (sd, mean))
        return pixels * sd + mean

    def _normalise(self, x: Tensor) -> Tensor:
        if self._affine is None:
            return x if x.is_floating_point() else x.long()
        factor, offset = self._affine
        return (x.to(factor.dtype) * factor + offset).to(self.dtype)

    def labels(self, index: Tensor) -> Tensor:
        """Return labels for some samples.

        Args:
            index: Sample numbers, of any shape.

        Returns:
            Labels, int64 [*index.shape], or masks, int64 [*index.shape, height, width], or
            standardised targets in the run's precision, [*index.shape].
        """
        labels = trees.rows(self._y, index)
        return labels if labels.is_floating_point() else labels.long()

    def labels_of(self, samples: np.ndarray) -> np.ndarray:
        """Return `labels` of some samples in host memory."""
        index = torch.from_numpy(samples).to(self.device)
        return np.asarray(self.labels(index).cpu())

    def batch(self, index: Tensor, weight: Tensor, key: Tensor | None = None) -> Batch:
        """Return a batch, see `fl.api.protocols.Batch`.

        Args:
            index: Sample numbers, [..., b].
            weight: Weights of the samples, [..., b].
            key: Keys of the samples, [..., b]; None: no augmentation.
        """
        y = self.labels(index)
        if self._augment is not None and key is not None and y.dim() > index.dim():
            masks = y.reshape(-1, 1, *y.shape[index.dim() :])
            y = self._augment(masks, key.reshape(-1)).reshape(y.shape)
        batch = {
            "x": self.inputs(index, key),
            "y": y,
            "weight": weight.to(self.dtype),
        }
        return batch if key is None else {**batch, "key": key}


def affine(
    normalisation: Normalisation, inner_dims: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return factor and offset of x * scale / sd - mean / sd, with a dimension for channels."""
    scale, mean, sd = (
        torch.tensor(normalisation[key], dtype=torch.float64) for key in ("scale", "mean", "sd")
    )
    return tuple(
        (t.reshape(-1, *[1] * inner_dims) if t.dim() else t).to(device, dtype)
        for t in (scale / sd, -mean / sd)
    )  # type: ignore[return-value]


def join_draws(draws: Sequence[Arrays]) -> list[Arrays]:
    """Return the samples of draws as parts of one whole, so that one stack trains on all of them.

    Draws that need no join, as they have the same samples, share these.

    Args:
        draws: The samples of each draw.

    Returns:
        The same samples, with a common `Arrays.whole`; as they are if they cannot be joined:
        samples that differ in form, that are augmented, or that take too much memory together.
    """
    first, *others = draws
    if not others or any(_form(arrays) != _form(first) for arrays in draws):
        return list(draws)
    x, y = ([getattr(arrays, name) for arrays in draws] for name in ("_x", "_y"))
    are_equal = all(torch.equal(x[0], other) for other in x[1:])
    are_equal &= all(torch.equal(y[0], other) for other in y[1:])
    if not are_equal and sum(tensor.nbytes for tensor in x) > MAX_CPU_BYTES:
        return list(draws)
    sizes = [0] * len(draws) if are_equal else [len(tensor) for tensor in x]
    whole = copy(first)
    whole._x, whole._y = (x[0], y[0]) if are_equal else (torch.cat(x), torch.cat(y))
    parts = [copy(arrays) for arrays in draws]
    for part, size, end in zip(parts, sizes, accumulate(sizes), strict=True):
        part._whole, part.begin = whole, end - size
        rows = slice(part.begin, end) if size else slice(None)
        part._x, part._y = whole._x[rows], whole._y[rows]
    return parts


def _form(arrays: Arrays) -> tuple[Any, ...]:
    """Return what the samples of draws must have in common to be joined."""
    if type(arrays) is not Arrays or arrays._x is None or arrays._augment is not None:
        return (arrays,)
    affine_values = [value.tolist() for value in arrays._affine or ()]
    x, y = arrays._x, arrays._y
    return x.dtype, x.shape[1:], y.dtype, y.shape[1:], arrays.dtype, str(x.device), affine_values


class SeveralArrays(Arrays):
    """Samples with several inputs: `inputs` returns a tree with a leaf for each input by name.

    Args:
        by_input: Arrays of the same samples, with the same labels, by name of the input.
    """

    def __init__(self, by_input: Mapping[str, Arrays]) -> None:
        first, *_ = by_input.values()
        # Labels, device and precision are equal for all inputs.
        self.__dict__.update(vars(first))
        self.by_input = dict(by_input)

    @property
    def shape(self) -> tuple[int, ...]:
        """The empty tuple, since there is no single input."""
        return ()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each input by its name."""
        return {name: arrays.shape for name, arrays in self.by_input.items()}

    @property
    def random(self) -> bool:
        """Whether training batches need keys."""
        return any(arrays.random for arrays in self.by_input.values())

    def inputs(self, index: Tensor, key: Tensor | None = None) -> dict[str, Tensor]:
        """Return inputs by name, [*index.shape, ...] each; a sample has one key for all images."""
        return {name: arrays.inputs(index, key) for name, arrays in self.by_input.items()}


def augmentation_by_modality(
    modalities: Sequence[Modality], augmentation: str
) -> dict[Modality, str]:
    """Return the augmentation of each of several inputs: of images only, if there are any."""
    images = [m for m in modalities if len(m.shape) == IMAGE_DIMS and not m.tokens]
    return {m: augmentation if m in (images or modalities) else "none" for m in modalities}


PADDING = 4
"""Pixels of zeros around an image before it is cropped, as is usual for CIFAR."""

CROP_AND_FLIP, TURN, ROTATE = range(3)
"""Streams of a sample's key from which the steps draw."""

Augment = Callable[[Tensor, Tensor], Tensor]
"""Function of raw images [n, channels, height, width] and the key of each, int64 [n]."""


def augmentation_function(text: str) -> Augment | None:
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
