"""Kinds of input that a data set has of every sample. A client holds all of them, or one.

A partition numbers clients by what they hold: one of the kinds, in the data set's order, or, as the
last number, all of them (`groups`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MODALITY = "modality"
"""In a partition, the column that says which of the data set's modalities a client holds."""

ANY = "any"
"""As a model's ``modalities``: it takes several inputs of numbers, whatever they are called."""


@dataclass(frozen=True)
class Modality:
    """One kind of input: photographs, captions; what one sensor measures.

    name: as models and messages say it. array: the array of the prepared data set that has it.
    shape: of one input. tokens: how many different ones there are, where it is whole numbers.
    """

    name: str
    array: str
    shape: tuple[int, ...]
    tokens: int = 0


def kinds_of(model: Any) -> tuple[str, ...]:
    """The inputs that a model, or its class, takes by name; none: it takes one, as a tensor."""
    names = getattr(model, "modalities", ())
    return (names,) if isinstance(names, str) else tuple(names)


def takes(model: Any, kinds: Sequence[Modality]) -> bool:
    """Whether a model is for these inputs, which are several."""
    wanted, names = kinds_of(model), {kind.name for kind in kinds}
    if wanted == (ANY,):
        return len(names) > 1 and not any(kind.tokens for kind in kinds)
    return len(names) > 1 and set(wanted) == names


def groups(kinds: Sequence[Modality], count: int) -> list[tuple[Modality, ...]]:
    """What the clients of each modality hold, by the number of the modality in a partition.

    Args:
        count: How many there are: as many as kinds, or one more, whose clients hold all of them.
    """
    return [*((kind,) for kind in kinds), tuple(kinds)][:count]


def named(group: Sequence[Modality]) -> str:
    """What clients hold, in words: ``image``, ``image and text``."""
    return " and ".join(kind.name for kind in group)
