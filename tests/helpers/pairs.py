"""One of two processes that run every method together; the first writes what came out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from contract import worlds

from fl.code import registry
from fl.errors import FedloomError
from fl.simulation.simulate import Simulation
from fl.train.messages import HOST
from fl.train.team import Member, Team

BACKENDS = ("stacked",)


def world(name: str) -> Simulation:
    """The world of a method."""
    return worlds.world(name, participation=1.0, local_epochs=1)


def make(asked: Mapping[str, Any], device: torch.device) -> dict[str, Simulation]:
    """As the other process is asked."""
    if asked["name"] == "broken":
        raise ValueError("cannot be made")
    if asked["name"] == "gone":
        os._exit(0)
    return {"run": world(asked["name"])}


def compared(team: Team, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """How far two processes are from one."""
    alone = world(name)
    team.begin({"name": name}, [HOST] * team.size)
    shared = team.joined("run", alone)
    for backend in BACKENDS:
        state, rows = worlds.run(alone, backend)
        other, other_rows = worlds.run(shared, backend)
        yield (
            backend,
            {
                "apart": worlds.distance(worlds.tree(other), worlds.tree(state)),
                "rows": bool(worlds.rows_agree(other_rows, rows, 1e-10)),
                "moved": worlds.distance(worlds.tree(state), worlds.tree(alone.begin())),
            },
        )


def main(place: Path) -> None:
    """Run every method, and what goes wrong."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if dist.get_rank():
        Member(make).serve()
        return
    team = Team()
    found = {name: dict(compared(team, name)) for name in registry.names("method")}
    for name in ("broken", "gone"):
        try:
            team.begin({"name": name}, [HOST] * 2)
        except FedloomError as error:
            found[name] = {"text": str(error)}
    place.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
