"""The samples of a data set as tensors: inputs, labels and batches at given sample numbers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.data.inputs import Modality
from fl.engine import augment

IMAGE = 3
"""Dimensions of an input that is an image: channels, height and width."""

ON_CARD, IN_MEMORY = 2**31, 2**28
"""Bytes of a set that is copied as a whole. Without a card that saves nothing but the first reading
of a file, and the samples of those who never take part would be in memory too.
"""


class Arrays:
    """The samples of a data set, ready to be gathered into batches on a device.

    Inputs become ``(x * scale - mean) / sd`` in the run's precision; scale, mean and sd are one
    number each, or one for each channel. Inputs that are float64 stay so until they are
    normalised. Without a normalisation inputs are tokens, which stay whole numbers (int64).

    Args:
        x: Inputs; they may be a memory map, as labels may.
        y: Labels: a number for each sample, or a mask.
        augmentation: What is done to training batches, and to masks with their images, see
            `fl.engine.augment`.
        resident: Sets of up to so many bytes are copied to the device once; larger ones are
            gathered batch by batch. By default `ON_CARD`, or `IN_MEMORY` without one.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        normalisation: Mapping[str, Any] | None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        resident: int | None = None,
        augmentation: str = "none",
    ) -> None:
        self.device, self.dtype = torch.device(device), dtype
        self._affine: tuple[Tensor, Tensor] | None = None
        self._normalisation = normalisation
        if normalisation is not None:
            exact = torch.float64 if x.dtype == np.float64 else dtype
            self._affine = _affine(normalisation, x.ndim - 2, self.device, exact)
        self._augment = augment.augmentation(augmentation)
        # Masks stay as small as they are until a batch is made of them.
        kind = np.int64 if y.ndim == 1 else y.dtype
        self._y = torch.from_numpy(np.array(y, dtype=kind)).to(self.device)
        self._x: Tensor | None = None
        self._map = x
        if resident is None:
            resident = IN_MEMORY if self.device.type == "cpu" else ON_CARD
        if x.nbytes <= resident:
            self._x = torch.from_numpy(np.array(x)).to(self.device)
            if self._augment is None and self._x.is_floating_point():
                self._x, self._affine = self._normalised(self._x), None

    @cached_property
    def _mapped(self) -> Tensor:
        """Inputs where they lie, in a file mostly."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(np.asarray(self._map))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input; () where samples have several, see ``shapes``."""
        return self._map.shape[1:]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each input by its name, where samples have several."""
        return {}

    @property
    def size(self) -> int:
        """How many samples there are."""
        return len(self._map)

    @property
    def random(self) -> bool:
        """Whether training batches need keys."""
        return self._augment is not None

    def inputs(self, index: Tensor, key: Tensor | None = None) -> Any:
        """Normalised inputs, [*index.shape, ...]; a tree of them where samples have several.

        Args:
            index: Sample numbers, of any shape.
            key: Of each sample; with it inputs are augmented as training batches are.
        """
        flat = index.reshape(-1)
        if self._x is not None:
            x = trees.rows(self._x, flat)
        else:
            x = trees.rows(self._mapped, flat.cpu()).to(self.device)
        if self._augment is not None and key is not None:
            x = self._augment(x, key.reshape(-1))
        x = self._normalised(x)
        return x.reshape(*index.shape, *x.shape[1:])

    def pixels(self, inputs: Tensor) -> Tensor:
        """Normalised images [..., channels, height, width] as x * scale again, float64: from 0 to 1
        where the data set is one of images; as they are where nothing is normalised.
        """
        pixels = inputs.double().cpu()
        if self._normalisation is None:
            return pixels
        sd, mean = (
            torch.tensor(self._normalisation[k], dtype=torch.float64) for k in ("sd", "mean")
        )
        sd, mean = (t.reshape(-1, 1, 1) if t.dim() else t for t in (sd, mean))
        return pixels * sd + mean

    def _normalised(self, x: Tensor) -> Tensor:
        if self._affine is None:
            return x if x.is_floating_point() else x.long()
        factor, offset = self._affine
        return (x.to(factor.dtype) * factor + offset).to(self.dtype)

    def labels(self, index: Tensor) -> Tensor:
        """Labels, int64: of the shape of ``index``, or masks [*index.shape, height, width]."""
        return trees.rows(self._y, index).long()

    def batch(self, index: Tensor, weight: Tensor, key: Tensor | None = None) -> dict[str, Any]:
        """The batch at ``index`` [..., b], see `fl.api.term.Batch`."""
        y = self.labels(index)
        if self._augment is not None and key is not None and y.dim() > index.dim():
            flat = y.reshape(-1, 1, *y.shape[index.dim() :])
            y = self._augment(flat, key.reshape(-1)).reshape(y.shape)
        batch = {
            "x": self.inputs(index, key),
            "y": y,
            "weight": weight.to(self.dtype),
        }
        return batch if key is None else {**batch, "key": key}


def _affine(
    normalisation: Mapping[str, Any], trailing: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """x * scale / sd - mean / sd, per channel of inputs [N, channels, ...] or for all alike."""
    scale, mean, sd = (
        torch.tensor(normalisation[key], dtype=torch.float64) for key in ("scale", "mean", "sd")
    )
    return tuple(
        (t.reshape(-1, *[1] * trailing) if t.dim() else t).to(device, dtype)
        for t in (scale / sd, -mean / sd)
    )  # type: ignore[return-value]


class SeveralArrays(Arrays):
    """Arrays of each input as one: `inputs` gives a tree, a leaf for each input by its name.

    Args:
        parts: By name, of the same samples with the same labels.
    """

    def __init__(self, parts: Mapping[str, Arrays]) -> None:
        first, *_ = parts.values()
        # Labels, device and precision are those of all parts.
        self.__dict__.update(vars(first))
        self._parts = dict(parts)

    @property
    def shape(self) -> tuple[int, ...]:
        """(), as there is no single input."""
        return ()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each input."""
        return {name: arrays.shape for name, arrays in self._parts.items()}

    @property
    def random(self) -> bool:
        """Whether training batches need keys."""
        return any(arrays.random for arrays in self._parts.values())

    def inputs(self, index: Tensor, key: Tensor | None = None) -> dict[str, Any]:
        """By name, [*index.shape, ...] each. The images of a sample are augmented alike."""
        return {name: arrays.inputs(index, key) for name, arrays in self._parts.items()}


def augmented(kinds: Sequence[Modality], augmentation: str) -> dict[Modality, str]:
    """The augmentation of each of several inputs: of the images alone, if there are any."""
    images = [kind for kind in kinds if len(kind.shape) == IMAGE and not kind.tokens]
    return {kind: augmentation if kind in (images or kinds) else "none" for kind in kinds}
