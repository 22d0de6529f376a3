"""A small run of clients with images, texts or both, for every method."""

from __future__ import annotations

from typing import Any

import worlds
from golden import adapter
from golden import worlds as golden
from short import short

from fl.api.method import declaration_of
from fl.base.schema import UNSEEN
from fl.engine.modality_simulation import ModalitySimulation


def world(
    method: str,
    seed: int = 5,
    classifier: str | None = None,
    absent_clients: tuple[int, ...] = (),
    device: str = "cpu",
    **training: Any,
) -> ModalitySimulation:
    """A method on both modalities; the classifier is shared where the method can."""
    about = declaration_of(worlds.entry(method).target)
    shared = classifier or ("shared" if about.modalities else "own")
    spec = {
        "data": "two",
        "modal": shared,
        "model": {**golden.IMAGE_TEXT, "classifier": shared},
        "method": {"name": method, **short(method)},
        "training": {**worlds.TRAINING, "local_epochs": 1, **training},
        "seed": seed,
        "server": worlds.SERVED * about.needs_server_data,
    }
    table = golden.table(spec)
    if absent_clients and not about.independent:
        table[UNSEEN] = table["client"].isin(absent_clients)
    simulation = adapter.simulated(spec, golden.arrays("two", table), table, device)
    assert isinstance(simulation, ModalitySimulation)
    return simulation
