"""One of two processes that run every method together; the first writes what came out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import modal_worlds
import pandas as pd
import torch
import torch.distributed as dist
import worlds
from arriving import arriving

from fl.base import registry
from fl.base.errors import FedloomError
from fl.engine import simulate
from fl.engine.simulate import Round
from fl.engine.simulation import Simulation
from fl.engine.state import State
from fl.participation.servers.fedbuff import FedBuff
from fl.runner.team import StackRequest, Team

METHODS = registry.names("method")
MODAL, SEVERAL, ARRIVING, FAILS = "modal-", "seeds-", "arriving-", "fails"
NAMES = [
    *METHODS,
    *(MODAL + name for name in ("fedavg", "scaffold")),
    f"{SEVERAL}fedrod",
    f"{ARRIVING}ditto",
]
"""The runs: every method, some on two modalities, one with two seeds in a stack, and one over an
asynchronous server.
"""
SEEDS = (5, 6)
DEVICES = [torch.device("cpu")] * 2
Lockstep = Callable[..., Iterator[dict[str, Round]]]


def made(name: str) -> dict[str, Simulation]:
    """The runs of a name, by seed; those of several modalities, or seeds, on samples of clients."""
    settings: dict[str, Any] = {"participation": 1.0, "local_epochs": 1}
    if name.startswith((MODAL, SEVERAL)):
        settings["evaluate_clients"] = 2
    if name.startswith(MODAL):
        return {"5": modal_worlds.world(name.removeprefix(MODAL), **settings)}
    if name.startswith(ARRIVING):
        server = FedBuff(size=2, concurrency=3)
        return {"5": arriving(name.removeprefix(ARRIVING), server, **{**settings, "rounds": 3})}
    method, seeds = name.removeprefix(SEVERAL), SEEDS if name.startswith(SEVERAL) else SEEDS[:1]
    return {str(seed): worlds.world(method, seed=seed, **settings) for seed in seeds}


def make(asked: StackRequest) -> dict[str, Simulation]:
    """The runs that the other process is asked for, by a name in place of the bundle's."""
    if asked.bundle == "broken":
        raise ValueError("cannot be made")
    if asked.bundle == "gone":
        os._exit(0)
    if asked.bundle == FAILS:
        # The second process trains other samples than there are.
        [(seed, run)] = made("fedavg").items()
        samples = run.client_data.samples
        beyond = {**samples, "train": [numbers + 10**6 for numbers in samples["train"]]}
        return {seed: replace(run, client_data=replace(run.client_data, samples=beyond))}
    return made(asked.bundle)


def run(runs: Mapping[str, Simulation], lockstep: Lockstep) -> dict[str, tuple[State, Any]]:
    """The state after all rounds, and all rows."""
    states = {seed: one.begin() for seed, one in runs.items()}
    done = list(lockstep(runs, states, 0, "stacked"))
    return {
        seed: (
            done[-1][seed].state,
            pd.concat([one[seed].rows for one in done], ignore_index=True),
        )
        for seed in runs
    }


def compared(team: Team, name: str) -> list[dict[str, Any]]:
    """Distances of two processes from one, for each run."""
    alone = made(name)
    shared = run(alone, partial(team.lockstep, name, DEVICES))
    results = []
    for seed, (state, rows) in run(alone, simulate.lockstep).items():
        other, other_rows = shared[seed]
        begun = worlds.tree(alone[seed].begin())
        results.append(
            {
                "apart": worlds.distance(worlds.tree(other), worlds.tree(state)),
                "rows": bool(worlds.rows_agree(other_rows, rows, 1e-10)),
                "moved": worlds.distance(worlds.tree(state), begun),
            }
        )
    return results


def main(place: Path) -> None:
    """Run every method, and what goes wrong."""
    torch.set_num_threads(1)
    team = Team()
    if team.rank:
        team.serve(make)
        return
    results: dict[str, Any] = {}
    for name in ("broken", FAILS, *NAMES, "gone"):
        try:
            alone = "fedavg" if name in ("broken", FAILS, "gone") else name
            if alone == name:
                results[name] = compared(team, name)
            else:
                run(made(alone), partial(team.lockstep, name, DEVICES))
        except FedloomError as error:
            results[name] = str(error)
    place.write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
