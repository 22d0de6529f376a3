"""Logs of a run while it is trained: events as lines of JSON, and curves for other programs.

``<results>/logs/runs/<run>.jsonl`` has one line per event. It is only appended to, so it covers all
processes that worked on the run. Fedloom does not read it, so a failing disk stops no run.

Other programs (MLflow, TensorBoard, Weights & Biases) get curves if the config lists them, as in
``execution: {log: [mlflow]}``. A curve is the mean of a metric over clients. The packages are not
part of Fedloom's environment; each is imported only if it is listed.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fl.base.errors import FedloomError
from fl.plan import config

if TYPE_CHECKING:
    import pandas as pd

    from fl.engine.simulate import Round

log = logging.getLogger(__name__)

CurveValues = list[tuple[str, float]]
"""Values by name of the curve: metric, split and stage (``accuracy/test, global``)."""

JsonValue = str | int | float | bool | None


@dataclass(frozen=True)
class CurveTarget:
    """The run to which curves belong.

    Attributes:
        run: Id of the run.
        title: Title of the run's bundle.
        seed: Seed of the run.
        folder: Folder of all logs.
    """

    run: str
    title: str
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """A short name of the run for people."""
        return f"seed-{self.seed}-{self.run[:6]}"


class CurveLogger(Protocol):
    """A program that receives the curves of one run."""

    def add(self, round_: int, values: CurveValues) -> None:
        """Add the values of a round."""

    def close(self) -> None:
        """Write everything out."""


class TensorBoard:
    """TensorBoard's event files of a run; events after round ``completed`` are replaced."""

    def __init__(self, target: CurveTarget, completed: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = target.folder / "tensorboard" / target.title / target.name
        self._writer = SummaryWriter(str(folder), purge_step=completed + 1)

    def add(self, round_: int, values: CurveValues) -> None:
        """Add the values of a round, see `CurveLogger`."""
        for name, value in values:
            self._writer.add_scalar(name, value, round_)

    def close(self) -> None:
        """Write everything out, see `CurveLogger`."""
        self._writer.close()


class MLflow:
    """A run of MLflow, in the store that ``MLFLOW_TRACKING_URI`` names, or in files.

    Files need no server, and several jobs can write at once.
    """

    def __init__(self, target: CurveTarget, completed: int) -> None:
        # MLflow refuses a store of files unless this is set.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow.tracking import MlflowClient

        files = (target.folder / "mlflow").resolve().as_uri()
        self._client: Any = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", files))
        experiment = self._client.get_experiment_by_name(target.title)
        number = (
            experiment.experiment_id if experiment else self._client.create_experiment(target.title)
        )
        existing = self._client.search_runs([number], f"tags.fedloom = '{target.run}'")
        tags = {"fedloom": target.run}
        run = (
            existing[0]
            if existing
            else self._client.create_run(number, tags=tags, run_name=target.name)
        )
        self._run = run.info.run_id

    def add(self, round_: int, values: CurveValues) -> None:
        """Add the values of a round, see `CurveLogger`."""
        for name, value in values:
            # MLflow allows no comma in a name.
            self._client.log_metric(self._run, name.replace(",", ""), value, step=round_)

    def close(self) -> None:
        """Write everything out, see `CurveLogger`."""
        self._client.set_terminated(self._run)


class WeightsAndBiases:
    """A run of Weights & Biases, in files; ``wandb sync`` sends them to a server."""

    def __init__(self, target: CurveTarget, completed: int) -> None:
        import wandb

        folder = target.folder / "wandb"
        folder.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            mode="offline",
            dir=str(folder),
            project="fedloom",
            group=target.title,
            name=target.name,
            id=f"{target.run}-{completed}",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )

    def add(self, round_: int, values: CurveValues) -> None:
        """Add the values of a round, see `CurveLogger`."""
        self._run.log(dict(values), step=round_)

    def close(self) -> None:
        """Write everything out, see `CurveLogger`."""
        self._run.finish()


LOGGERS: dict[str, Callable[[CurveTarget, int], CurveLogger]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


class CurveLoggers:
    """All programs that receive the curves of a run.

    Args:
        names: Names of the programs.
        target: The run.
        completed: Number of completed rounds.

    Raises:
        FedloomError: If a package is not installed.
    """

    def __init__(self, names: Sequence[str], target: CurveTarget, completed: int) -> None:
        for name in names:
            if not config.is_installed(name):
                problem = f"config: execution.log: is {name}, which is not installed"
                raise FedloomError(problem, advice=f"`pip install {name}`, or another list")
        self._loggers: list[CurveLogger] = [LOGGERS[name](target, completed) for name in names]

    def add(self, round_: int, rows: pd.DataFrame) -> None:
        """Add a round.

        Args:
            round_: Number of the round.
            rows: Its metrics, in the columns of `fl.base.schema.METRIC_COLUMNS`.
        """
        if self._loggers:
            values = list(_mean_over_clients(rows))
            for logger in self._loggers:
                logger.add(round_, values)

    def close(self) -> None:
        """Write everything out."""
        for logger in self._loggers:
            logger.close()


def _mean_over_clients(rows: pd.DataFrame) -> Iterator[tuple[str, float]]:
    """Yield the mean of each metric, split and stage over clients."""
    table = rows.groupby(["metric", "split", "stage"])["value"].mean()
    for row in table.reset_index().to_dict("records"):
        yield f"{row['metric']}/{row['split']}, {row['stage']}", float(row["value"])


class RunLog:
    """The log of one run, and its curves for other programs.

    Each event has its ``time``, in UTC. The events are:

    - ``begun``: a process starts or resumes the run after ``round``;
    - ``round``: a round is finished, with ``loss``, the mean over clients;
    - ``left``: the process was asked to leave; the state is saved;
    - ``finished``: with ``state`` and ``seconds``;
    - ``failed``: with ``error``.

    Args:
        results: Folder of results.
        run: Id of the run.
    """

    def __init__(self, results: Path, run: str) -> None:
        self._path, self._has_warned = results / "logs" / "runs" / f"{run}.jsonl", False
        self._loggers: CurveLoggers | None = None

    def begin(
        self, completed: int, backend: str, programs: Sequence[str], target: CurveTarget
    ) -> None:
        """Log that a process starts or resumes the run.

        Args:
            completed: Number of completed rounds.
            backend: Name of the backend.
            programs: Programs that receive curves.
            target: The run to which curves belong.
        """
        self._loggers = CurveLoggers(programs, target, completed)
        process: dict[str, JsonValue] = {"host": socket.gethostname(), "process": os.getpid()}
        if "SLURM_JOB_ID" in os.environ:
            process["slurm_job"] = os.environ["SLURM_JOB_ID"]
        self._write("begun", {"round": completed, **process, "backend": backend})

    def add_round(self, finished: Round) -> None:
        """Log a finished round."""
        self._write("round", {"round": finished.number, "loss": finished.loss})
        if self._loggers is not None:
            self._loggers.add(finished.number, finished.rows)

    def end(self, event: str, **facts: JsonValue) -> None:
        """Log that the process has stopped working on the run.

        Args:
            event: ``finished``, ``left`` or ``failed``.
            facts: Further entries of the line.
        """
        self._write(event, facts)
        if self._loggers is not None:
            self._loggers.close()
            self._loggers = None

    def _write(self, event: str, facts: Mapping[str, JsonValue]) -> None:
        """Append a line."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": time, "event": event, **facts}) + "\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # One call writes the line, so that lines of two processes are never mixed.
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                log.warning("%s: cannot be written (%s); the run continues", self._path, error)
