"""Runs of a small world over an asynchronous server, whose clients have unequal devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import worlds

from fl.api.method import BuildContext
from fl.api.participation import DeviceTable
from fl.base.errors import Location
from fl.engine.assembly import sibling
from fl.engine.run_setup import MethodComponents
from fl.engine.simulation import Simulation

UNEQUAL = (9.0, 3.3, 1.0, 4.8)
"""Speeds of the four clients."""


def table_of(speeds: Sequence[float]) -> DeviceTable:
    """Devices of these speeds, for which messages take no time."""
    ones = np.ones(len(speeds))
    return DeviceTable(np.array(speeds), 1e30 * ones, 1e30 * ones, 0 * ones)


@dataclass(frozen=True)
class Speeds:
    """Devices of given speeds, as a component."""

    speeds: tuple[float, ...]

    def build(self, context: BuildContext) -> DeviceTable:
        """Return the table of the devices."""
        return table_of(self.speeds)


def arriving(
    method: str,
    server: Any,
    model: str = "mlp",
    speeds: Sequence[float] = UNEQUAL,
    seed: int = worlds.SEED,
    **training: Any,
) -> Simulation:
    """A run over an asynchronous server; None: of a server that waits."""
    location, found = Location("test"), worlds.entry(method)
    usual = worlds.world(method, model, seed=seed, **training)
    components = MethodComponents(
        found.instantiate(found.parse(worlds.short(method), location)),
        devices=(Speeds(tuple(speeds)),),
        asynchronous=(server,) if server else (),
    )
    made = sibling(usual, components, seed)
    assert isinstance(made, Simulation)
    return made
