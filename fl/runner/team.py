"""The processes that train the runs of a bundle together.

All of them go through the same rounds on the same state (`fl.engine.processes`). The first one has
the store, the logs and the checkpoints; it is what a job of one process is, and tells the others
which runs to train and when to go on. Everything is said by one collective, `Team.exchange`, so an
error of any process meets all others at whatever they say next. Checkpoints do not know how many
processes there were, and whoever asks the job to leave asks the first one.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor

from fl.api import trees
from fl.base.errors import FedloomError
from fl.engine import simulate
from fl.engine.evaluate import metrics_table
from fl.engine.simulate import Round
from fl.engine.simulation import Simulation
from fl.engine.state import State
from fl.plan.bundle import Bundle
from fl.runner import launch, memory, simulations
from fl.runner.leaving import listen
from fl.store.store import Store

logger = logging.getLogger(__name__)

PATIENCE = timedelta(days=365)
"""How long a process waits for another: as long as a round may take. One that ends is noticed."""

Simulations = Mapping[str, Simulation]
Make = Callable[[Mapping[str, Any]], Simulations]
"""Makes what `Team.begin` asks for: the simulations of some runs by name."""

NEXT = "next round"


class Told(FedloomError):
    """A process of the team has failed, as all of them are told."""


class Lost(FedloomError):
    """Another process of the team has ended."""


class Team:
    """The processes of a job, as each of them sees them: a `fl.engine.processes.Team`."""

    def __init__(self) -> None:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        place = os.environ[launch.PLACE]
        dist.init_process_group(
            "gloo", f"file://{place}", timeout=PATIENCE, rank=rank, world_size=size
        )
        self.rank, self.size = rank, size

    def exchange(self, value: Any = None, error: str = "") -> list[Any]:
        """What each process gives, by rank; see `fl.engine.processes.Team`.

        Raises:
            Told: If one of them gives an error.
            Lost: If one of them has ended.
        """
        given: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(given, _written((value, error)))
        except RuntimeError as lost:
            reason = str(lost).strip().split("\n")[0]
            raise Lost(f"another process of this run has ended ({reason})") from lost
        values, errors = zip(*map(pickle.loads, given), strict=True)
        if any(errors):
            raise Told(next(filter(None, errors)))
        return list(values)

    def _tell(self, error: Exception) -> None:
        """Tell all processes of an error of this one."""
        with contextlib.suppress(Told):
            self.exchange(error=_told(error))

    # What the first process does

    def begin(self, asked: Mapping[str, Any], mine: Simulations) -> dict[str, Simulation]:
        """The others make simulations as ``asked``; gives those of the first, to be shared."""
        self.exchange({"make": asked})
        self.exchange()
        return self._sharing(mine)

    def lockstep(
        self,
        runs: Simulations,
        states: Mapping[str, State],
        done: int,
        backend: str,
        rows: Mapping[str, pd.DataFrame] | None = None,
    ) -> Iterator[dict[str, Round]]:
        """`fl.engine.simulate.lockstep`, by all processes."""
        self.exchange({"train": list(runs), "done": done, "backend": backend})
        told = {
            run: (
                state.server,
                state.client_states.to_checkpoint(),
                rows[run] if rows else metrics_table([]),
            )
            for run, state in states.items()
        }
        dist.broadcast_object_list([_written(told)])
        rounds = simulate.lockstep(runs, states, done, backend, rows)
        while True:
            self.exchange(NEXT)
            try:
                finished = next(rounds, None)
            except (Told, Lost):
                raise
            except Exception as error:
                self._tell(error)
                raise
            if finished is None:
                return
            yield finished

    def close(self) -> None:
        """The other processes end."""
        with contextlib.suppress(Told, Lost):
            self.exchange()

    # What the others do

    def serve(self, make: Make) -> None:
        """Do as the first process says, until it says nothing more."""
        self._runs: Simulations = {}
        self._rounds: Iterator[Any] = iter(())
        ended = False
        while not ended:
            try:
                ended = self._did(self.exchange()[0], make)
            except Told:  # The first process asks anew.
                continue
            except Lost:
                raise
            except Exception as error:
                self._tell(error)

    def _did(self, asked: Any, make: Make) -> bool:
        """Do as the first process says; gives whether it says nothing more."""
        if asked is None:
            return True
        if asked == NEXT:
            next(self._rounds, None)
        elif "make" in asked:
            self._runs = self._sharing(make(asked["make"]))
            self.exchange()
        else:
            self._rounds = self._followed(asked)
        return False

    def _followed(self, asked: Mapping[str, Any]) -> Iterator[Any]:
        """The rounds of the stack that the first process trains."""
        given: list[Any] = [None]
        dist.broadcast_object_list(given)
        states, rows = {}, {}
        for run, (server, clients, rows[run]) in pickle.loads(given[0]).items():
            begun, device = self._runs[run].begin(), self._runs[run].arrays.device
            states[run] = State(
                trees.to(server, device), begun.client_states.from_checkpoint(clients)
            )
        chosen = {run: self._runs[run] for run in asked["train"]}
        return simulate.lockstep(chosen, states, asked["done"], asked["backend"], rows)

    def _sharing(self, runs: Simulations) -> dict[str, Simulation]:
        return {run: _shared(self, simulation) for run, simulation in runs.items()}


def _shared(team: Team, simulation: Simulation) -> Simulation:
    by_modality = tuple(_shared(team, alone) for alone in simulation.by_modality)
    return replace(simulation, team=team, by_modality=by_modality)


def run(bundles: Sequence[Bundle], store: Store, lead: Callable[[Team], int]) -> int:
    """The exit status of this process, which is one of several.

    Args:
        lead: What the first process does.
    """
    team = Team()
    try:
        if team.rank:
            _serve(team, {bundle.bundle: bundle for bundle in bundles}, store)
            return 0
        threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()
        status = lead(team)
        team.close()
        return status
    finally:  # A process that ends with a group may be aborted by its threads.
        dist.destroy_process_group()


def _serve(team: Team, bundles: Mapping[str, Bundle], store: Store) -> None:
    logging.getLogger().setLevel(logging.WARNING)
    # The first process decides when to leave; a scheduler signals all.
    listen(signal.SIG_IGN)

    def make(asked: Mapping[str, Any]) -> dict[str, Simulation]:
        bundle, made = bundles[asked["bundle"]], dict[str, Simulation]()
        device = torch.device(asked["devices"][team.rank])
        simulations.settle(bundle, store)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        members = {member.run: member for member in bundle.runs}
        for name in asked["runs"]:
            like = next(iter(made.values()), None)
            made[name] = simulations.made(bundle, members[name], like, store, device)
        return made

    # If the first process is gone, whoever started both knows more about it.
    with contextlib.suppress(Lost):
        team.serve(make)


def _leave_with(parent: int) -> None:
    """Leave, with everything saved, if the process that started this one is killed."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


def _told(error: Exception) -> str:
    """An error as the other processes are told of it."""
    if dist.get_rank() and not memory.known(error):  # The first one logs its own.
        logger.exception("process %d failed:", dist.get_rank())
    return memory.told(error)


class _Pickler(pickle.Pickler):
    """Writes tensors as arrays: what PyTorch does takes a hundred times as long."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return NotImplemented
        return torch.from_numpy, (value.detach().cpu().contiguous().numpy(),)


def _written(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()
