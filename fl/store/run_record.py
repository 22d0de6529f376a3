"""The files of a run, and the record of a finished run, ``run.json``.

The record says what the run is, how it was computed, and what it cost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from fl.base.dataclass_json import Json, from_json
from fl.base.fields import Cores, Index, NonNegative
from fl.base.specs import Spec

RECORD, METRICS, WEIGHTS = "run.json", "metrics.parquet", "final.safetensors"
TRACES, PREDICTIONS = "traces.safetensors", "predictions.parquet"
STATE, CLIENT_ROWS = "state.safetensors", "clients.rows"
"""The state after the last round, if it is kept; clients that do not fit into memory are apart."""
RUN_FILES = (METRICS, WEIGHTS, TRACES, PREDICTIONS, STATE, CLIENT_ROWS)
"""Files of a finished run in addition to its record; it always has the first one."""
OPTIONAL_FILES = (WEIGHTS, PREDICTIONS)
"""Files that a run has only if they are needed. A run without one is trained again for it."""
CHECKPOINTS, LEASE = "checkpoint", "lease.json"
SAVED_STATE, SAVED_ROWS = "state.safetensors", "rows.parquet"
SAVED_RECORD = "checkpoint.json"
"""Files of a checkpoint."""


def is_name(run: str) -> bool:
    """Whether ``run`` can be the name of a run, and of its folder."""
    return re.fullmatch(r"[A-Za-z0-9_-]+", run) is not None


def run_of(text: str) -> str:
    """Return the run that a user names: by its id, the first characters of it, or its folder."""
    return PurePath(text).name.removesuffix(".partial")


@dataclass(frozen=True)
class Costs:
    """The costs of a run's completed rounds, per participant and round if not said otherwise.

    Stragglers count as if they did all of their work. Values that a record lacks are None.

    Attributes:
        clients: Number of clients that may take part.
        participants: Number of clients that take part in a round.
        traffic: ``[rounds, down, up]`` for each stretch of equal rounds, in order: the bytes that a
            participant receives and sends in each of them.
        bytes_down: Mean over rounds of the bytes that a participant receives.
        bytes_up: Mean over rounds of the bytes that a participant sends.
        flops: Floating-point operations, mean over clients and rounds. The last batch of an epoch
            counts as a full one.
        flops_server: Floating-point operations of the steps that the server declares
            (`fl.api.method.ServerWork`), mean over rounds; means are not counted.
        memory_client: Largest number of bytes of the weights and states that a client's step reads:
            those that it trains, and those with which it compares or corrects them. Batches,
            activations, gradients and the state of the optimizer are not counted.
        state_client: Bytes that a client keeps between rounds.
        state_server: Bytes that the server keeps, including those for each client.
    """

    clients: Index | None = None
    participants: Index | None = None
    traffic: list[list[NonNegative]] | None = None
    bytes_down: NonNegative | None = None
    bytes_up: NonNegative | None = None
    flops: NonNegative | None = None
    flops_server: NonNegative | None = None
    memory_client: Index | None = None
    state_client: Index | None = None
    state_server: Index | None = None


@dataclass(frozen=True)
class UnknownCosts:
    """Costs that could not be measured.

    Attributes:
        unknown: The reason.
    """

    unknown: str


@dataclass(frozen=True)
class ExecutionRecord:
    """The machine and the processes that computed a run.

    Attributes:
        backend: Name of the backend.
        stack: Ids of the runs that were trained in one stack.
        device: Name of the GPU, or ``cpu``.
        processes: Number of processes of the last stretch.
        stretches: For each uninterrupted stretch of training, the round ``after`` which it began
            and its number of ``processes``.
        threads: Number of threads of each process.
        arithmetic: ``portable`` if all x86-64 processors compute the same bits; ``native`` if they
            are those of this device or processor; empty in records of before.
    """

    backend: str
    stack: list[str] | None = None
    device: str | None = None
    processes: Index | None = None
    stretches: list[dict[str, Index]] = field(default_factory=list)
    threads: Cores | None = None
    arithmetic: str = ""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The content of ``run.json``, except for the hashes of the run's files.

    Attributes:
        run: Id of the run.
        state: ``complete`` or ``diverged``.
        spec: Every choice that decides the run's numbers.
        code: Versions of code, or hashes of edited code, and ids of data, by root.
        defaults: Keys of the spec with their default values.
        code_files: Hashes of files that are not certified.
        data: Hashes of the data set and the partition.
        start: The run with whose model this run begins; None: it begins with fresh variables.
        versions: Versions of Fedloom, Python and packages.
        environment: Commit, lock file, processor, and the instructions that PyTorch uses.
        date: Time at which the run was finished, UTC.
        execution: How the run was computed.
        rounds: Number of completed rounds.
        seconds: Seconds of work.
        note: Why the run ended early; empty if it did not.
        costs: The costs of the run.
        trained_as: Id that the run had when it was trained, if its code was certified later
            (`fl.plan.adoption`); else empty.
        attackers: Ids of the clients that attack, in ascending order; None: not recorded.
    """

    run: str
    state: str
    spec: Spec
    code: Mapping[str, str] = field(default_factory=dict)
    defaults: list[str] = field(default_factory=list)
    code_files: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    start: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str | bool | None] = field(default_factory=dict)
    date: str = ""
    execution: ExecutionRecord
    rounds: int
    seconds: float
    note: str = ""
    costs: Costs | UnknownCosts
    trained_as: str = ""
    attackers: list[Index] | None = None

    @property
    def traffic(self) -> list[list[float]] | None:
        """Return ``[rounds, down, up]`` of the completed rounds, in order; None if unknown.

        Costs that an earlier version stored are of all planned rounds, even if the run stopped
        early.
        """
        if isinstance(self.costs, UnknownCosts) or self.costs.traffic is None:
            return None
        remaining, stretches = self.rounds, []
        for rounds, down, up in self.costs.traffic:
            count = min(int(rounds), remaining)
            remaining -= count
            if count:
                stretches.append([count, down, up])
        return stretches

    @classmethod
    def from_json(cls, content: Mapping[str, Json]) -> RunRecord:
        """Read the content of a checked ``run.json``, see `fl.store.run_check.check_record`.

        Args:
            content: The content; keys that an earlier version did not write have defaults, and
                keys of a later version are left out.

        Returns:
            The record.
        """
        return from_json(cls, {"spec": {}, **content, "costs": content.get("costs") or {}})
