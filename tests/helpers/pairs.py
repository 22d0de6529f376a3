"""One of two processes that run every method together; the first writes what came out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from contract import test_modalities, worlds

from fl.code import registry
from fl.errors import FedloomError
from fl.simulation import simulate
from fl.simulation.engine import State
from fl.simulation.simulate import Simulation
from fl.train.messages import HOST
from fl.train.team import Member, Team

METHODS = registry.names("method")
MODAL, SEVERAL = "modal-", "seeds-"
NAMES = [*METHODS, *(MODAL + name for name in ("fedavg", "scaffold")), f"{SEVERAL}fedrod"]
"""What is run: every method, some on two modalities, and one with two seeds in a stack."""
SEEDS = (5, 6)


def made(name: str) -> dict[str, Simulation]:
    """The runs of a name, by seed."""
    settings: dict[str, Any] = {"participation": 1.0, "local_epochs": 1}
    if name.startswith(MODAL):
        return {"5": test_modalities.world(name.removeprefix(MODAL), **settings)}
    method, seeds = name.removeprefix(SEVERAL), SEEDS if name.startswith(SEVERAL) else SEEDS[:1]
    return {str(seed): worlds.world(method, seed=seed, **settings) for seed in seeds}


def make(asked: Mapping[str, Any], device: torch.device) -> dict[str, Simulation]:
    """As the other process is asked."""
    if asked["name"] == "broken":
        raise ValueError("cannot be made")
    if asked["name"] == "gone":
        os._exit(0)
    return made(asked["name"])


def run(runs: Mapping[str, Simulation]) -> dict[str, tuple[State, pd.DataFrame]]:
    """The state after all rounds, and all rows."""
    states = {seed: one.begin() for seed, one in runs.items()}
    done = list(simulate.lockstep(runs, states, 0, "stacked"))
    return {
        seed: (
            done[-1][seed].state,
            pd.concat([one[seed].rows for one in done], ignore_index=True),
        )
        for seed in runs
    }


def compared(team: Team, name: str) -> list[dict[str, Any]]:
    """How far two processes are from one, for each run."""
    alone = made(name)
    team.begin({"name": name}, [HOST] * team.size)
    whole = run(alone)
    shared = run({seed: team.joined(seed, one) for seed, one in alone.items()})
    found = []
    for seed, (state, rows) in whole.items():
        other, other_rows = shared[seed]
        begun = worlds.tree(alone[seed].begin())
        found.append(
            {
                "apart": worlds.distance(worlds.tree(other), worlds.tree(state)),
                "rows": bool(worlds.rows_agree(other_rows, rows, 1e-10)),
                "moved": worlds.distance(worlds.tree(state), begun),
            }
        )
    return found


def main(place: Path) -> None:
    """Run every method, and what goes wrong."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if dist.get_rank():
        Member(make).serve()
        return
    team = Team()
    found: dict[str, Any] = {name: compared(team, name) for name in NAMES}
    for name in ("broken", "gone"):
        try:
            team.begin({"name": name}, [HOST] * 2)
        except FedloomError as error:
            found[name] = str(error)
    place.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
