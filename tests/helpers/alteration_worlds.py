"""Methods of the contract with an alteration of features that is felt at every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worlds import world

from fl.base import fields, registry
from fl.base.errors import Location
from fl.engine.simulation import Simulation

NAMES = registry.names("alteration")
LAYERS = ("0", "4")
"""Names of the convolutions of the contract's convolutional model, which give images."""
MORE: dict[str, dict[str, Any]] = {
    "dac-sc": {"p": 1.0},
    "moex": {"p": 1.0},
    "mixstyle": {"p": 1.0, "alpha": 0.5},
}
"""Values under which an alteration is felt at every step."""


def altered(
    name: str, method: str = "fedavg", values: Mapping[str, Any] | None = None, **more: Any
) -> Simulation:
    """A method with an alteration that is felt at every step."""
    declared = fields.fields(registry.find("alteration", name, Location("test")).target)
    given = {"layers": list(LAYERS), **MORE.get(name, {}), **(values or {})}
    keys = {key: value for key, value in given.items() if key in declared}
    return world(method, "cnn", alterations=[(name, keys)], **more)
