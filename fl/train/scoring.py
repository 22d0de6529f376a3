"""A process's share of an evaluation: some clients, scored, and their rows put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from fl.api import trees
from fl.api.trees import Tree
from fl.base.schema import METRIC_COLUMNS, PERSONAL
from fl.engine.held import Held
from fl.engine.rows import TYPES, as_rows, named, table
from fl.engine.simulate import Simulation
from fl.engine.state import State


def samples(simulation: Simulation) -> np.ndarray:
    """How many samples every client's model is scored on."""
    held = simulation.held
    found = np.zeros(held.clients)
    for name, by_client in held.samples.items():
        if name != "train":
            found += [len(own) for own in by_client]
    return found


def rows(simulation: Simulation, state: State, own: np.ndarray) -> dict[str, Any]:
    """What scoring some clients needs of their trees."""
    clients = state.clients
    if PERSONAL not in simulation.method.views:
        clients = {"id": clients["id"]}
    return trees.take(clients, torch.from_numpy(own))


def score(
    simulation: Simulation, own: list[int], server: Tree, clients: dict[str, Any], round_: int
) -> pd.DataFrame:
    """The rows of some clients, whose trees are ``clients`` in that order."""
    if not own:
        return as_rows([])
    part = replace(
        simulation,
        held=_held(simulation.held, own),
        modals=tuple(
            replace(one, held=_held(one.held, own), group=None) for one in simulation.modals
        ),
        group=None,
    )
    found = part.evaluate(State(dict(server), clients), round_)
    found["client"] = np.array(own, np.int32)[found["client"]]
    return found


def _held(held: Held, own: list[int]) -> Held:
    """What some clients hold, numbered anew."""
    away = set(held.away)
    return Held(
        {name: [by_client[k] for k in own] for name, by_client in held.samples.items()},
        tuple(place for place, k in enumerate(own) if k in away),
        held.everywhere,
        None if held.modality is None else held.modality[own],
    )


def columns(found: pd.DataFrame) -> dict[str, Any]:
    """A table as it is sent: numbers, and of texts the names and each row's place among them."""
    sent: dict[str, Any] = {}
    for name in METRIC_COLUMNS:
        if name in TYPES:
            sent[name] = torch.tensor(found[name].to_numpy())
        else:
            codes, names = pd.factorize(found[name])
            sent[name] = [torch.from_numpy(codes), [str(one) for one in names]]
    return sent


def received(sent: Mapping[str, Any]) -> pd.DataFrame:
    """The table that was sent as `columns`."""
    texts = {name: named(one[0].numpy(), one[1]) for name, one in sent.items() if name not in TYPES}
    return table({name: one.numpy() for name, one in sent.items() if name in TYPES} | texts)


def in_order(simulation: Simulation, parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Rows of several processes as one has them: by modality, stage, split and client."""
    found = pd.concat(parts, ignore_index=True)
    modality = simulation.held.modality if simulation.modals else None
    keys = pd.DataFrame(
        {
            "modality": 0 if modality is None else modality[found["client"]],
            "stage": _place(found["stage"], list(simulation.method.views)),
            "split": _place(found["split"], ["val", "test"]),
            "client": found["client"],
        }
    )
    order = np.lexsort([keys[name].to_numpy() for name in reversed(list(keys))])
    return found.iloc[order].reset_index(drop=True)


def _place(names: pd.Series, order: list[str]) -> pd.Series:
    """The place of each name; one that is not listed comes last."""
    return names.map({name: place for place, name in enumerate(order)}).fillna(len(order))
