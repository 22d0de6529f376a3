"""From a world to its numbers: the one file of the goldens that knows how ``fl`` is laid out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sources
import torch

from fl.api.training import Training
from fl.base import fields, identity, registry
from fl.base.errors import Location
from fl.data import preparation
from fl.data.dataset import Modality
from fl.data.partition_statistics import domain_distances, statistics
from fl.data.partitioning import apply_scheme
from fl.data.prepared import Prepared
from fl.engine import assembly, simulate
from fl.engine.assembly import RunComponents
from fl.engine.simulation import Simulation
from fl.plan.run_spec import RunSpec

ADDED = registry.ADDED_KINDS
WHERE = Location("golden")


def root(kind: str, name: str) -> str:
    """The root of an entry's code, as `identity.entry` calls it."""
    return identity.entry(kind, name)


def names(kind: str) -> list[str]:
    """The entries of a kind."""
    return registry.names(kind)


def simulated(
    world: Mapping[str, Any],
    given: Mapping[str, Any],
    table: pd.DataFrame,
    device: str = "cpu",
) -> Simulation:
    """The simulation of a world's run on given arrays, on a device."""
    spec = {
        "model": _settled("model", world["model"]),
        "method": _settled("method", world["method"]),
        **{
            key: [_settled(kind, one) for one in world.get(key, ())]
            for key, kind in registry.ADDED_KINDS.items()
        },
        "training": Training.settle(fields.parse(Training, world["training"], WHERE), WHERE),
        "seed": world.get("seed", 5),
        **{key: world[key] for key in ("test", "train_on") if key in world},
    }
    parts = RunComponents(
        registry.component_of("model", spec["model"])[1],
        RunSpec(spec).method_components,
        registry.find("task", world.get("task", "classification"), WHERE).instantiate({}),
        tuple(Modality(*kind) for kind in given.get("modalities", ())),
    )
    return assembly.assemble(spec, parts, _prepared(given), table, torch.device(device))


def trained(
    world: Mapping[str, Any], given: Mapping[str, Any], table: pd.DataFrame
) -> tuple[pd.DataFrame, dict[str, Any], dict[str, Any]]:
    """A run of a world on given arrays.

    Returns:
        The rows of all rounds, the final weights by stage, and the traces by round and name.
    """
    simulation = simulated(world, given, table)
    if "images" in world:
        simulation = assembly.train_on_images(simulation, torch.from_numpy(world["images"]))
    rows, weights = [], None
    if world.get("start"):
        weights = simulation.network.init(99)
        rows.append(simulation.evaluate_start(weights))
    state, traces = simulation.begin(weights), {}
    for done in simulate.rounds(simulation, state, 0, "loop"):
        state = done.state
        rows.append(done.rows)
        traces |= {f"{done.number}/{name}": trace for name, trace in done.traces.items()}
    return pd.concat(rows, ignore_index=True), simulation.final_weights(state), traces


def settings(world: Mapping[str, Any]) -> list[str]:
    """The settings of a world's run that may have a version of their own."""
    training = Training.settle(fields.parse(Training, world["training"], WHERE), WHERE)
    return list(identity.versioned_options({**world, "training": training}))


def _settled(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    name, *rest = values
    assert name == "name", rest
    entry = registry.find(kind, values["name"], WHERE)
    keys = {key: value for key, value in values.items() if key != "name"}
    for key in {"path", "capacity"} & keys.keys() if kind == "devices" else ():
        keys[key] = str(Path(__file__).parent / "devices" / keys[key])
    return {"name": entry.name, **entry.parse(keys, WHERE)}


def _prepared(given: Mapping[str, Any]) -> Prepared:
    arrays = dict.fromkeys(("client", "domain", "split", "mask", "text"))
    values = {**arrays, "folder": Path("prepared"), "name": "golden", "params": {}, "domains": ()}
    keys = {key: value for key, value in given.items() if key != "modalities"}
    return Prepared(**{**values, "sources": (), **keys})


def read(name: str, values: Mapping[str, Any], files: Path | None, folder: Path) -> Prepared:
    """A data set, prepared in ``folder`` from generated files, or from what it brings itself."""
    params = dict(values)
    supply = preparation.DEFAULT_POLICY
    if files is not None:
        generator = sources.generator(name)
        files.mkdir(parents=True)
        generator.write(files)
        params, supply = {**generator.PARAMS, **params}, preparation.SourcePolicy(str(files))
    entry = registry.find("data set", name, WHERE)
    made = entry.instantiate(entry.parse(params, WHERE))
    preparation.prepare_folder(made, name, folder / "raw", folder / "prepared", supply)
    return Prepared.open(folder / "prepared")


def with_files(name: str) -> bool:
    """Whether files of a data set can be generated."""
    return name in sources.names()


def dealt(
    name: str, values: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The partition table of a scheme, its statistics, and the distances between domains."""
    entry = registry.find("partition scheme", name, WHERE)
    prepared = _prepared(given)
    table = apply_scheme(entry.target, entry.parse(values, WHERE), prepared, name)
    measures = statistics(table, prepared.y, len(prepared.classes))
    rows = table.loc[(table["split"] == "train").to_numpy(bool), "sample"].to_numpy()
    assert prepared.domain is not None
    return table, measures, domain_distances(prepared.x, np.asarray(prepared.domain), rows)
