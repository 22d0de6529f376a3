"""Curves of a run for MLflow, TensorBoard, and Weights & Biases.

A curve is the mean of a metric over clients. The packages are not part of Fedloom's environment;
each is imported only if the config lists it, as in ``execution: {log: [mlflow]}``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fl.base.errors import FedloomError
from fl.plan import config

if TYPE_CHECKING:
    import pandas as pd

CurveValues = list[tuple[str, float]]
"""Values by name of the curve: metric, split and stage (``accuracy/test, global``)."""


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


class Curves:
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
