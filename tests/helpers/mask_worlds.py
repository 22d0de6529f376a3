"""A small segmentation of masks, for every method."""

from __future__ import annotations

from typing import Any

import worlds
from golden import adapter
from golden import worlds as golden
from short import short

from fl.api.method import declaration_of
from fl.engine.simulation import Simulation


def world(
    method: str,
    absent_clients: bool = False,
    alteration: dict[str, Any] | None = None,
    device: str = "cpu",
    **training: Any,
) -> Simulation:
    """A method on masks and a U-Net of one level, whose blocks are altered where layers are to be
    named; ``absent_clients``: whether a client is held out.
    """
    # Without layers they are the model's blocks.
    values = {key: value for key, value in short(method).items() if key != "layers"}
    alone = declaration_of(worlds.entry(method).target).independent
    spec = {
        "data": "masks",
        "task": "segmentation",
        "model": golden.UNET,
        "method": {"name": method, **values},
        "alterations": [alteration] if alteration else [],
        "training": {**worlds.TRAINING, "local_epochs": 1, **training},
        "away": absent_clients and not alone,
    }
    table = golden.table(spec)
    return adapter.simulated(spec, golden.arrays("masks", table), table, device)
