"""The processes of a job that train the runs of a bundle together.

All processes run the same rounds on the same state (`fl.engine.processes`). The first one has the
store, the logs and the checkpoints, like a job of one process. It tells the others which runs to
train and when to continue. All messages go through one collective, `Team.exchange`, so an error of
any process reaches all others at their next message. Checkpoints do not depend on the number of
processes. A request to leave goes to the first process.
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
from datetime import timedelta
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor

from fl.api import trees
from fl.base.errors import FedloomError
from fl.engine import simulate
from fl.engine.evaluate import metrics_table
from fl.engine.processes import ProcessDivision
from fl.engine.simulate import Round
from fl.engine.simulation import Trainable
from fl.engine.state import State
from fl.plan.bundle import Bundle
from fl.runner import job_processes
from fl.runner.job_processes import set_signal_handler
from fl.runner.process_settings import prepare_process
from fl.runner.runs import describe_error, is_expected, make_simulation
from fl.store.store import Store

logger = logging.getLogger(__name__)

TIMEOUT = timedelta(days=365)
"""Longest wait for another process, since a round may take long. If it ends, the wait ends."""

Simulations = Mapping[str, Trainable]


class StackRequest(NamedTuple):
    """The runs that all processes train together.

    Attributes:
        bundle: Id of their bundle.
        runs: Their ids.
        devices: The device of each process.
        completed: Number of completed rounds.
        backend: Name of the backend.
    """

    bundle: str
    runs: list[str]
    devices: Sequence[torch.device]
    completed: int
    backend: str


MakeSimulations = Callable[[StackRequest], Simulations]

NEXT_ROUND = "next round"


class ProcessFailed(FedloomError):
    """A process of the team has failed; all processes raise this error."""


class ProcessLost(FedloomError):
    """Another process of the team has ended."""


class Team:
    """The processes of a job that compute its runs together.

    Attributes:
        size: Number of processes.
        rank: Number of this process, from 0.
    """

    def __init__(self) -> None:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        meeting_file = os.environ[job_processes.MEETING_VARIABLE]
        dist.init_process_group(
            "gloo", f"file://{meeting_file}", timeout=TIMEOUT, rank=rank, world_size=size
        )
        self.rank, self.size = rank, size
        self._division = ProcessDivision(rank, size, self.exchange)
        self._rounds: Iterator[dict[str, Round]] = iter(())

    def exchange(self, value: Any = None, error: str = "") -> list[Any]:
        """Send a value or an error to all processes; every process calls this at the same point.

        Args:
            value: The value of this process.
            error: The error of this process, in words.

        Returns:
            The values of all processes, by rank.

        Raises:
            ProcessFailed: If a process sends an error.
            ProcessLost: If a process has ended.
        """
        messages: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(messages, _serialise((value, error)))
        except RuntimeError as lost:
            reason = str(lost).strip().split("\n")[0]
            raise ProcessLost(f"another process of this run has ended ({reason})") from lost
        values, errors = zip(*map(pickle.loads, messages), strict=True)
        if any(errors):
            raise ProcessFailed(next(filter(None, errors)))
        return list(values)

    def _send_error(self, error: Exception) -> None:
        """Send an error of this process to all processes."""
        with contextlib.suppress(ProcessFailed):
            self.exchange(error=_describe_and_log(error))

    # Methods of the first process

    def lockstep(
        self,
        bundle: str,
        devices: Sequence[torch.device],
        simulations: Simulations,
        states: Mapping[str, State],
        completed: int,
        backend: str,
        rows: Mapping[str, pd.DataFrame] | None = None,
    ) -> Iterator[dict[str, Round]]:
        """Yield rounds that all processes compute; see `fl.engine.simulate.lockstep`.

        Args:
            bundle: Id of the bundle of the runs.
            devices: The device of each process.
            simulations: The runs.
            states: Their states after the completed rounds.
            completed: Number of completed rounds.
            backend: Name of the backend.
            rows: Metrics of the completed rounds; None before round 1.

        Yields:
            The finished round of each run.
        """
        self.exchange(StackRequest(bundle, list(simulations), devices, completed, backend))
        self.exchange()  # All processes have made the simulations.
        run_states = {
            run: (
                state.server,
                state.client_states.to_message(),
                state.participation,
                rows[run] if rows else metrics_table([]),
            )
            for run, state in states.items()
        }
        dist.broadcast_object_list([_serialise(run_states)])
        rounds = simulate.lockstep(simulations, states, completed, backend, rows, self._division)
        while True:
            self.exchange(NEXT_ROUND)
            try:
                finished = next(rounds, None)
            except (ProcessFailed, ProcessLost):
                raise
            except Exception as error:
                self._send_error(error)
                raise
            if finished is None:
                return
            yield finished

    def close(self) -> None:
        """End the other processes."""
        with contextlib.suppress(ProcessFailed, ProcessLost):
            self.exchange()

    # Methods of the other processes

    def serve(self, make_simulations: MakeSimulations) -> None:
        """Follow the messages of the first process until it ends.

        Args:
            make_simulations: Function that makes requested simulations.
        """
        has_ended = False
        while not has_ended:
            try:
                has_ended = self._follow(self.exchange()[0], make_simulations)
            except ProcessFailed:  # The first process sends its next message.
                continue
            except ProcessLost:
                raise
            except Exception as error:
                self._send_error(error)

    def _follow(self, message: Any, make_simulations: MakeSimulations) -> bool:
        """Follow a message of the first process; return whether it has ended."""
        if isinstance(message, StackRequest):
            simulations = make_simulations(message)
            self.exchange()
            self._rounds = self._receive_rounds(message, simulations)
        elif message == NEXT_ROUND:
            next(self._rounds, None)
        return message is None

    def _receive_rounds(
        self, request: StackRequest, simulations: Simulations
    ) -> Iterator[dict[str, Round]]:
        """Return the rounds of the stack that the first process trains."""
        messages: list[Any] = [None]
        dist.broadcast_object_list(messages)
        states, rows = {}, {}
        for run, (server, clients, participation, rows[run]) in pickle.loads(messages[0]).items():
            simulation = simulations[run]
            client_states = simulation.begin().client_states.from_checkpoint(clients)
            server = trees.to(server, simulation.device)
            states[run] = State(server, client_states, participation)
        return simulate.lockstep(
            simulations, states, request.completed, request.backend, rows, self._division
        )


def run(bundles: Sequence[Bundle], store: Store, lead: Callable[[Team], int]) -> int:
    """Run this process, which is one of several.

    Args:
        bundles: The bundles of the job.
        store: The store.
        lead: Function that the first process calls; returns its exit status.

    Returns:
        The exit status of this process.
    """
    team = Team()
    try:
        if team.rank:
            _serve(team, {bundle.bundle: bundle for bundle in bundles}, store)
            return 0
        threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
        status = lead(team)
        team.close()
        return status
    finally:  # A process that ends with an open group may be aborted by its threads.
        dist.destroy_process_group()


def _serve(team: Team, bundles: Mapping[str, Bundle], store: Store) -> None:
    logging.getLogger().setLevel(logging.WARNING)
    # A scheduler signals all processes, but only the first decides when to leave.
    set_signal_handler(signal.SIG_IGN)

    by_run: dict[str, Trainable] = {}

    def make_simulations(request: StackRequest) -> Simulations:
        bundle, device = bundles[request.bundle], request.devices[team.rank]
        prepare_process(bundle, store)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        members = {member.run: member for member in bundle.runs}
        if not by_run.keys() <= members.keys():  # Those of another bundle.
            by_run.clear()
        for run_id in request.runs:
            if run_id not in by_run:
                sibling = next(iter(by_run.values()), None)
                by_run[run_id] = make_simulation(bundle, members[run_id], sibling, store, device)
        return {run_id: by_run[run_id] for run_id in request.runs}

    # If the first process has ended, the process that started both reports that.
    with contextlib.suppress(ProcessLost):
        team.serve(make_simulations)


def _leave_with_parent(parent: int) -> None:
    """Leave, with everything saved, if the parent process is killed."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


def _describe_and_log(error: Exception) -> str:
    """Describe an error for other processes, and log it unless this is the first process."""
    if dist.get_rank() and not is_expected(error):
        logger.exception("process %d failed:", dist.get_rank())
    return describe_error(error)


class _Pickler(pickle.Pickler):
    """Serialises tensors as arrays, a hundred times as fast as PyTorch does."""

    def reducer_override(self, value: Any) -> Any:
        """Return how a tensor is serialised; other values are serialised as usual."""
        if not isinstance(value, Tensor):
            return NotImplemented
        return torch.from_numpy, (value.detach().cpu().contiguous().numpy(),)


def _serialise(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()
