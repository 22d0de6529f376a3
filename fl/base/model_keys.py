"""The config keys that every model has beside its own: which weights are trained, and adapters.

A spec has them only if a study sets them, so that other runs keep their names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fl.base import fields
from fl.base.errors import Location
from fl.base.fields import Count, Positive


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters of linear layers.

    Attributes:
        rank: Rank of the product that is added to a layer's weights.
        alpha: The product counts alpha / rank times.
        layers: Patterns of names of linear layers; the head is never adapted.
    """

    rank: Count = 8
    alpha: Positive = 16.0
    layers: tuple[str, ...] = ("*",)


@dataclass(frozen=True)
class Adapter:
    """The kind of adapters, with its keys."""

    lora: Lora


@dataclass(frozen=True)
class ModelKeys:
    """The keys of every model.

    Attributes:
        trainable: Patterns of names of the weights that are trained; the others are frozen.
        adapter: Layers that are trained in place of the model's weights.
    """

    trainable: tuple[str, ...] | None = None
    adapter: Adapter | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any], location: Location) -> ModelKeys:
        """Return the keys of every model among the values of a model.

        Raises:
            ConfigError: For a value that is not allowed.
        """
        common = {key: values[key] for key in fields.fields(cls) if key in values}
        return cls(**fields.parse(cls, common, location))

    @property
    def spec(self) -> dict[str, Any]:
        """The keys that are set, as specs have them."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}
