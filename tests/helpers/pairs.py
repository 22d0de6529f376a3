"""One of two processes that run every method together; the first writes what came out."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from contract import test_modalities, worlds

from fl.api.trees import Tree
from fl.base import registry
from fl.base.errors import FedloomError
from fl.engine import simulate
from fl.engine.engine import State
from fl.engine.midway import UNWATCHED, Midway
from fl.engine.midway import place as named
from fl.engine.simulate import Simulation
from fl.store import tree_file
from fl.train import calls
from fl.train.messages import HOST
from fl.train.team import Member, Team

METHODS = registry.names("method")
MODAL, SEVERAL = "modal-", "seeds-"
NAMES = [*METHODS, *(MODAL + name for name in ("fedavg", "scaffold")), f"{SEVERAL}fedrod"]
"""What is run: every method, some on two modalities, and one with two seeds in a stack."""
SEEDS = (5, 6)
LEFT = [
    *(("fedavg", "stacked"), ("fedavg", "loop"), ("fedfm", "stacked")),
    *((f"{SEVERAL}fedrod", "stacked"), (f"{MODAL}scaffold", "stacked")),
]
"""What is left within a round: methods that are averaged and that are not, with phases before,
of several seeds and modalities; and how they are trained.
"""


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


OTHERS = re.compile(r"others\W.*step")
"""A leaf of what the second process has kept within a pass."""


class Leaving(Exception):
    """The round is left."""


@dataclass
class Inside:
    """A midway that is due after every step of the first process; kept: what came of it."""

    folder: Path
    goes_on: bool
    kept: list[Tree] = field(default_factory=list)

    def due(self) -> bool:
        return True

    def keep(self, tree: Tree) -> None:
        # As a checkpoint has it: from a file of its own.
        path = self.folder / "midway"
        path.write_bytes(tree_file.packed(tree, repeats=True))
        self.kept.append(tree_file.unpacked(path, "cpu", repeats=True))
        if not self.goes_on:
            raise Leaving


def left(team: Team, name: str, backend: str, folder: Path) -> dict[str, Any]:
    """How far a round that is left, and gone on with, is from one that was not."""
    alone = made(name)
    team.begin({"name": name}, [HOST] * team.size)
    shared = {seed: team.joined(seed, one) for seed, one in alone.items()}
    begun = {seed: one.begin() for seed, one in alone.items()}

    def after(runs: Mapping[str, Simulation], midway: Midway = UNWATCHED) -> dict[str, Any]:
        done = next(simulate.lockstep(runs, begun, 0, backend, midway))
        return {seed: worlds.tree(done[seed].state) for seed in runs}

    whole, often = after(shared), Inside(folder, goes_on=True)
    paused = after(shared, Midway(often.due, often.keep))
    once = Inside(folder, goes_on=False)
    with contextlib.suppress(Leaving):
        after(shared, Midway(once.due, once.keep))
    [tree] = once.kept
    again = after(shared, Midway(begun=tree))
    by_one = after(alone, Midway(begun=tree))
    return {
        "pauses": len(often.kept),
        "others": sum(any(map(OTHERS.search, worlds.names(tree))) for tree in often.kept),
        "place": named(tree),
        "paused": max(worlds.distance(paused[seed], whole[seed]) for seed in whole),
        "again": max(worlds.distance(again[seed], whole[seed]) for seed in whole),
        "one": max(worlds.distance(by_one[seed], whole[seed]) for seed in whole),
    }


def main(place: Path) -> None:
    """Run every method, and what goes wrong."""
    torch.set_num_threads(1)
    calls.PAUSE = 0.0  # As steps take no time here.
    dist.init_process_group("gloo")
    if dist.get_rank():
        Member(make).serve()
        return
    team = Team()
    found: dict[str, Any] = {name: compared(team, name) for name in NAMES}
    found["left"] = {"-".join(one): left(team, *one, place.parent) for one in LEFT}
    for name in ("broken", "gone"):
        try:
            team.begin({"name": name}, [HOST] * 2)
        except FedloomError as error:
            found[name] = str(error)
    place.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
