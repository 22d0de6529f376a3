"""Samples that have several inputs each, such as what two sensors measure at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fl.data.modality import Modality
from fl.engine.arrays import Arrays

IMAGE = 3
"""Dimensions of an input that is an image: channels, height and width."""


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
        return {name: part.shape for name, part in self._parts.items()}

    @property
    def numbers(self) -> int:
        """Of how many numbers a sample's inputs consist, all together."""
        return sum(part.numbers for part in self._parts.values())

    @property
    def random(self) -> bool:
        """Whether training batches need keys."""
        return any(part.random for part in self._parts.values())

    def inputs(self, index: Tensor, key: Tensor | None = None) -> dict[str, Any]:
        """By name, [*index.shape, ...] each. The images of a sample are augmented alike."""
        return {name: part.inputs(index, key) for name, part in self._parts.items()}


def augmented(kinds: Sequence[Modality], augmentation: str) -> dict[Modality, str]:
    """The augmentation of each of several inputs: of the images alone, if there are any."""
    images = [kind for kind in kinds if len(kind.shape) == IMAGE and not kind.tokens]
    return {kind: augmentation if kind in (images or kinds) else "none" for kind in kinds}
