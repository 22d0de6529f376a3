"""Small worlds to run a method in: four clients of unequal size, one smaller than a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pretend_card
import torch
from short import VARIANTS, short
from torch import Tensor, nn

from fl.api import trees
from fl.api.method import declaration_of
from fl.api.recipes import VARIABLE_GROUPS
from fl.api.training import Training
from fl.base import fields, registry
from fl.base.errors import FedloomError, Location
from fl.base.registry import Component, find
from fl.base.schema import GLOBAL, METRIC_COLUMNS, PERSONAL
from fl.engine import simulate
from fl.engine.assembly import TYPE_BY_PRECISION, make_network
from fl.engine.client_data import ClientData
from fl.engine.modality_rounds import ModalitySchedule
from fl.engine.run_setup import RunSetup
from fl.engine.sample_arrays import Arrays
from fl.engine.simulation import Simulation
from fl.engine.state import RoundSchedule, State
from fl.plan.run_spec import RunSpec

CARD = pretend_card.plug_in()
"""Before the first gradient in this process, since autograd counts devices once."""

CLASSES = 3
SIZES = (13, 5, 20, 9)
"""Training samples per client; batches have eight."""

SEED = 5

SERVED = 11
"""Samples of a server that trains, too."""

MODELS = {"mlp": {"hidden": [5], "norm": None}, "cnn": {"channels": [3, 4], "projection": None}}
SHAPES = {"mlp": (6,), "cnn": (1, 4, 4)}
NORMALISATION = {"scale": 0.5, "mean": 0.25, "sd": 2.0}

TRAINING = {
    "rounds": 2,
    "local_epochs": 2,
    "batch_size": 8,
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 1e-3,
    "schedule": "exponential",
    "lr_decay": 0.9,
    "participation": 0.75,
    "precision": "float64",
}
NAMES = [name for name in METRIC_COLUMNS if name != "value"]


def entry(method: str) -> Component:
    return find("method", VARIANTS.get(method, (method,))[0], Location("test"))


def data(
    model: str, sizes: Sequence[int] = SIZES, validated: bool = False, served: bool = False
) -> tuple[np.ndarray, np.ndarray, ClientData]:
    """Inputs, labels, and who holds which: the middle clients have no validation samples, unless
    all are to be ``validated``; the last samples are the server's, if it is ``served``.

    A client's samples do not depend on how many clients come after it.
    """
    draw = np.random.default_rng(11)
    splits: dict[str, list[np.ndarray]] = {"train": [], "val": [], "test": []}
    xs, ys, first = [], [], 0
    for client, size in enumerate(sizes):
        n = {"train": size, "val": 0 if client in (1, 2) and not validated else 4, "test": 6}
        for split, count in n.items():
            splits[split].append(np.arange(first, first + count))
            first += count
        y = draw.integers(0, CLASSES, sum(n.values()))
        xs.append(draw.normal(y[:, None] - client / 2, 1.5, (len(y), *[16])))
        ys.append(y)
    server = np.arange(first, first + SERVED * served)
    if served:
        ys.append(draw.integers(0, CLASSES, SERVED))
        xs.append(draw.normal(ys[-1][:, None], 1.5, (SERVED, 16)))
    shape = SHAPES[model]
    x = np.concatenate(xs)[:, : int(np.prod(shape))].reshape(-1, *shape)
    return x, np.concatenate(ys), ClientData(splits, server=server)


def module(model: str) -> nn.Module:
    """A fresh module of a model, as a user of PyTorch has it."""
    _, made = registry.component_of("model", {"name": model, **MODELS[model]})
    return made.build(SHAPES[model], CLASSES)


def world(
    method: str,
    model: str = "mlp",
    values: Mapping[str, Any] | None = None,
    sizes: Sequence[int] = SIZES,
    seed: int = SEED,
    terms: Sequence[tuple[str, Mapping[str, Any]]] = (),
    alterations: Sequence[tuple[str, Mapping[str, Any]]] = (),
    device: str = "cpu",
    wire: Mapping[str, Any] | None = None,
    aggregation: Mapping[str, Any] | None = None,
    **training: Any,
) -> Simulation:
    """A simulation of ``method`` with the hyper-parameters ``values``, more ``terms``, and what
    alters ``alterations``, on a device; ``wire`` and ``aggregation`` as an entry has them.
    """
    found, location = entry(method), Location("test")
    given = {**TRAINING, **training}
    settled = Training(**Training.settle(fields.parse(Training, given, location), location))
    says = declaration_of(found.target)
    x, y, held = data(model, sizes, says.needs_validation, says.needs_server_data)
    spec = {
        "method": {
            "name": found.name,
            **found.parse({**short(method), **(values or {})}, location),
        },
        "terms": [
            {"name": name, **find("term", name, location).parse(keys, location)}
            for name, keys in terms
        ],
        "alterations": [
            {"name": name, **find("alteration", name, location).parse(keys, location)}
            for name, keys in alterations
        ],
        "wire": [
            {"name": name, **find("upload filter", name, location).parse(keys, location)}
            for name, keys in (wire or {}).items()
        ],
        "aggregation": [
            {"name": name, **find("aggregation", name, location).parse(keys, location)}
            for name, keys in (aggregation or {}).items()
        ],
    }
    network = make_network(lambda: module(model), settled)
    arrays = Arrays(x, y, NORMALISATION, device, TYPE_BY_PRECISION[settled.precision])
    setup = RunSetup(network, settled, arrays, held, CLASSES)
    try:
        return Simulation.of(RunSpec(spec).method_components, setup, seed)
    except FedloomError:
        if model == "cnn" or network.batch_norm:
            raise
        # Some methods refuse a model without batch normalisation, which the other one has.
        more: dict[str, Any] = {"wire": wire, "aggregation": aggregation, **training}
        return world(method, "cnn", values, sizes, seed, terms, alterations, device, **more)


def run(simulation: Simulation, backend: str = "loop") -> tuple[State, pd.DataFrame]:
    """The state after all rounds, and all rows."""
    state, rows = simulation.begin(), []
    for done in simulate.rounds(simulation, state, 0, backend):
        state = done.state
        rows.append(done.rows)
    assert len(rows) == simulation.training.rounds
    return state, pd.concat(rows, ignore_index=True)


@cache
def looped(method: str, model: str) -> tuple[State, pd.DataFrame]:
    """The result of `run` for a method and a model, client by client; tests share it."""
    return run(world(method, model), "loop")


def tree(state: State) -> dict[str, Any]:
    return {"server": state.server, "clients": state.clients}


def distance(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """The largest difference between two leaves; the trees have the same keys."""
    assert names(a) == names(b)
    pairs = zip(trees.leaves(a), trees.leaves(b), strict=True)
    apart = ((x.double() - y.double()).abs() for x, y in pairs if x.numel())
    return max((float(difference.max()) for difference in apart), default=0.0)


def same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two trees have the same keys, types and values, to the last bit."""
    pairs = list(zip(trees.leaves(a), trees.leaves(b), strict=True))
    return names(a) == names(b) and all(x.dtype == y.dtype and torch.equal(x, y) for x, y in pairs)


def names(given: Mapping[str, Any], above: str = "") -> list[str]:
    """The leaves' names in order, ``params/0.weight``."""
    found: list[str] = []
    for key, leaf in given.items():
        inner = isinstance(leaf, Mapping)
        found += names(leaf, f"{above}{key}/") if inner else [f"{above}{key}"]
    return found


def together(
    runs: Mapping[int, Simulation],
    alone: Mapping[int, tuple[State, pd.DataFrame]] = MappingProxyType({}),
) -> list[dict[int, simulate.Round]]:
    """The rounds of runs that differ in their seed, trained in one stack; each run is checked to be
    what it is alone, which is computed unless it is among ``alone``.
    """
    begun = {seed: run.begin() for seed, run in runs.items()}
    rounds = list(simulate.lockstep(runs, begun, 0, "stacked"))
    for seed, simulation in runs.items():
        state, rows = alone[seed] if seed in alone else run(simulation, "loop")
        assert distance(tree(rounds[-1][seed].state), tree(state)) < 1e-10
        found = pd.concat([done[seed].rows for done in rounds], ignore_index=True)
        assert rows_agree(found, rows, 1e-10)
    return rounds


def rows_agree(a: pd.DataFrame, b: pd.DataFrame, tolerance: float) -> bool:
    """Whether two tables have the same rows in the same order, and values within ``tolerance``."""
    pd.testing.assert_frame_equal(a[NAMES], b[NAMES])
    return float((a["value"] - b["value"]).abs().max()) <= tolerance


def inputs(raw: np.ndarray) -> Tensor:
    """Raw inputs as a model sees them."""
    n = NORMALISATION
    return torch.from_numpy((raw * n["scale"] - n["mean"]) / n["sd"])


def chosen(plan: RoundSchedule, rows: Sequence[int]) -> RoundSchedule:
    """The plan with some of its participants only, in that order; nobody else comes where all
    clients are asked.
    """
    return _of_clients(plan, plan.clients[torch.tensor(rows)].tolist())


def _of_clients(plan: RoundSchedule, clients: list[int]) -> RoundSchedule:
    phases = []
    for phase in plan.phases:
        ids = [] if phase is None else phase.clients.tolist()
        places = [ids.index(client) for client in clients if client in ids]
        phases.append(phase and phase.take(np.array(places, np.int64)))
    plan = replace(plan, phases=tuple(phases))
    if not isinstance(plan, ModalitySchedule):
        return plan
    inner = [its and _of_clients(its, clients) for its in plan.by_modality]
    by_modality = tuple(its if its and len(its.clients) else None for its in inner)
    return replace(plan, by_modality=by_modality)


def shared(simulation: Simulation, state: State) -> dict[str, Any]:
    """The variables of the global view."""
    return simulation.method.views[GLOBAL](state.server, None)


def personal(simulation: Simulation, state: State) -> list[dict[str, Any]]:
    """The variables of each client's personal view, in the module's order."""
    views = []
    for client in range(len(state.clients["id"])):
        view = simulation.method.views[PERSONAL](state.server, trees.take(state.clients, client))
        names = simulation.network.names
        views.append(
            {kind: {name: view[kind][name] for name in names[kind]} for kind in VARIABLE_GROUPS}
        )
    return views


def ends(*args: Any, **more: Any) -> tuple[Simulation, State]:
    """A `world`, and its state after all rounds."""
    simulation = world(*args, **more)
    return simulation, run(simulation)[0]
