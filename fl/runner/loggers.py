"""Curves for other programs, for users who want them: ``execution: {log: [mlflow]}``.

Every metric is shown as the mean over clients. None of the packages is part of Fedloom's
environment; each is imported only where it is asked for.
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

Values = list[tuple[str, float]]
"""By metric, split and stage (``accuracy/test, global``), a number."""


@dataclass(frozen=True)
class Curves:
    """Whose curves they are: a run's name, title and seed; folder: of all that is logged."""

    run: str
    title: str
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """The run's name for people."""
        return f"seed-{self.seed}-{self.run[:6]}"


class Logger(Protocol):
    """What one program is told of one run."""

    def add(self, round_: int, values: Values) -> None:
        """The values of a round."""

    def close(self) -> None:
        """Write out what is left."""


class Board:
    """TensorBoard's event files of a run, going on after round ``after``."""

    def __init__(self, curves: Curves, after: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        place = curves.folder / "tensorboard" / curves.title / curves.name
        self._writer = SummaryWriter(str(place), purge_step=after + 1)

    def add(self, round_: int, values: Values) -> None:
        """See `Logger`."""
        for name, value in values:
            self._writer.add_scalar(name, value, round_)

    def close(self) -> None:
        """See `Logger`."""
        self._writer.close()


class MLflow:
    """A run of MLflow, in the store that ``MLFLOW_TRACKING_URI`` names, or in files: those serve
    several jobs at once, and need no server.
    """

    def __init__(self, curves: Curves, after: int) -> None:
        # Which MLflow calls a store of files that only a user may ask for.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow.tracking import MlflowClient

        files = (curves.folder / "mlflow").resolve().as_uri()
        self._client: Any = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", files))
        experiment = self._client.get_experiment_by_name(curves.title)
        number = (
            experiment.experiment_id if experiment else self._client.create_experiment(curves.title)
        )
        told = self._client.search_runs([number], f"tags.fedloom = '{curves.run}'")
        made = (
            told[0]
            if told
            else self._client.create_run(number, tags={"fedloom": curves.run}, run_name=curves.name)
        )
        self._run = made.info.run_id

    def add(self, round_: int, values: Values) -> None:
        """See `Logger`."""
        for name, value in values:
            # A comma is none of the signs that it takes.
            self._client.log_metric(self._run, name.replace(",", ""), value, step=round_)

    def close(self) -> None:
        """See `Logger`."""
        self._client.set_terminated(self._run)


class WeightsAndBiases:
    """A run of Weights & Biases, in files: ``wandb sync`` takes them to a server."""

    def __init__(self, curves: Curves, after: int) -> None:
        import wandb

        place = curves.folder / "wandb"
        place.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            mode="offline",
            dir=str(place),
            project="fedloom",
            group=curves.title,
            name=curves.name,
            id=f"{curves.run}-{after}",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )

    def add(self, round_: int, values: Values) -> None:
        """See `Logger`."""
        self._run.log(dict(values), step=round_)

    def close(self) -> None:
        """See `Logger`."""
        self._run.finish()


LOGGERS: dict[str, Callable[[Curves, int], Logger]] = {
    "tensorboard": Board,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


class Loggers:
    """All programs that are told of a run.

    Raises:
        FedloomError: If a package is not installed here.
    """

    def __init__(self, names: Sequence[str], curves: Curves, after: int) -> None:
        for name in names:
            if not config.is_installed(name):
                problem = f"config: execution.log: is {name}, which is not installed"
                raise FedloomError(problem, advice=f"`pip install {name}`, or another list")
        self._loggers: list[Logger] = [LOGGERS[name](curves, after) for name in names]

    def add(self, round_: int, rows: pd.DataFrame) -> None:
        """The rows of a round, in the columns of `fl.base.schema.METRIC_COLUMNS`."""
        if self._loggers:
            values = list(_means(rows))
            for logger in self._loggers:
                logger.add(round_, values)

    def close(self) -> None:
        """Write out what is left."""
        for logger in self._loggers:
            logger.close()


def _means(rows: pd.DataFrame) -> Iterator[tuple[str, float]]:
    means = rows.groupby(["metric", "split", "stage"])["value"].mean()
    for row in means.reset_index().to_dict("records"):
        yield f"{row['metric']}/{row['split']}, {row['stage']}", float(row["value"])
