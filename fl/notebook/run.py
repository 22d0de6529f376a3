"""What `fl` exports: `run` a study that is written in Python, `load` one of ``config/studies``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pandas as pd

from fl.base.errors import ConfigError, Location
from fl.base.schema import DIVERGED
from fl.notebook import kernel, keys
from fl.notebook.plainly import plainly
from fl.notebook.result import Result
from fl.plan import config as config_files
from fl.plan import plan
from fl.plan.config import Settings

FOLDER = Path("config")
"""The config folder of a call that names none, where there is one."""


@plainly
def run(
    *,
    name: str = "notebook",
    config: str | Path | None = None,
    keep_weights: bool | None = None,
    progress: bool = True,
    **study: Any,
) -> Result:
    """Train a study that is written as a call, in this process, and return its results.

    The keys are those of a file in ``config/studies`` (``docs/config.md``): ``datasets``,
    ``partitions``, ``models``, ``methods``, ``seeds``, ``baseline`` and so on, each as a Python
    value. One may also say ``dataset``, ``partition`` or ``model`` for a single one, ``seeds=3``
    for 0, 1 and 2 (without ``seeds`` it is 0), ``methods`` as a list, and the keys of ``training``
    themselves, as ``rounds=5``. A data set may be one of your own, see `arrays`.

    A method, a model, a term or an alteration may be a class of the notebook's, or an instance:
    ``methods={"mine": Mine(strength=0.1)}``, for a grid ``{"mine": {"method": Mine, "strength":
    [0.1, 1.0]}}``. It is one as in a plugin, see ``docs/tutorial.md``. Its source, with the
    functions, classes and constants of the notebook that it reads, becomes a plugin below
    ``results/classes``, and decides the names of its runs.

    Runs have the names that a study's file would give them, and are kept in the same store: what is
    there is not trained again, and an interrupted call goes on when it is made again. Paths are
    relative to the working directory.

    Args:
        name: Of the study, for its report.
        config: A config folder, whose ``config.yaml`` says where things are kept; by default
            ``config`` in the working directory, and without one ``results`` and ``data`` there.
        keep_weights: Whether final weights are kept, which `Result.model` and `Result.predictions`
            read. By default those of runs that are trained now are; True also trains runs again
            that are there without weights.
        progress: Whether to show a progress bar, in a notebook or a terminal.
        study: The study's keys.

    Raises:
        FedloomError: For a key that is wrong, data that cannot be used, and if every run fails. If
            only some fail or diverge, there is a warning that names them.
        KeyboardInterrupt: When interrupted; what is done is kept.
    """
    from fl.notebook import training

    folder, settings = _settings(config)
    kernel.check_unedited()
    given, settings = keys.study({**study, "keep_weights": bool(keep_weights)}, settings)
    planned = plan.make_from(folder, settings, {_checked(name, folder): (given, keys.CALL)})
    plan.write_files(planned)
    bundles = planned.bundles
    failed = training.train(planned, bundles, keep_weights is not False, progress)
    training.check(failed, planned)
    for line in failed:
        warnings.warn(f"failed: {line}", stacklevel=3)
    result = Result(planned.studies[name].to_json(), bundles, settings)
    for line in _diverged(result.runs()):
        warnings.warn(f"diverged: {line}", stacklevel=3)
    return result


def _diverged(runs: pd.DataFrame) -> list[str]:
    """A line for each method and point of which runs diverged."""
    each = runs.drop_duplicates("run").groupby(["method", "point"], sort=False)["state"]
    counts = [(key, int((states == DIVERGED).sum()), len(states)) for key, states in each]
    return [f"{m} at {point}, {lost} of {n} runs" for (m, point), lost, n in counts if lost]


@plainly
def load(study: str, config: str | Path | None = None) -> Result:
    """The results of a study of ``config/studies``, of the runs that are there; nothing is trained.

    Args:
        study: Its name.
        config: The config folder, by default ``config`` in the working directory.

    Raises:
        FedloomError: For a study that is not there, or that cannot be planned.
    """
    folder = Path(config or FOLDER)
    config_files.read_study(folder, study, Location("fl.load"))
    planned = plan.read_or_make(folder, [study])
    return Result(planned.studies[study].to_json(), planned.bundles, planned.settings)


def _settings(given: str | Path | None) -> tuple[Path, Settings]:
    """The config folder, and what its ``config.yaml`` says; without one, the defaults."""
    folder = Path(given or FOLDER)
    if given is None and not (folder / "config.yaml").exists():
        return folder, Settings(studies=())
    settings = config_files.read_settings(folder)
    config_files.check_methods(folder)
    return folder, settings


def _checked(name: str, folder: Path) -> str:
    """The name of a call's study; not that of a file, whose plan and report it would replace."""
    config_files.check_name(name, keys.CALL / "name")
    path = folder / "studies" / f"{name}.yaml"
    if path.exists():
        problem = f"is {name!r}, which is the study in {path}"
        raise ConfigError(keys.CALL / "name", problem, "another name")
    return name
