"""Functions of `fl`: `run` a study that is written in Python, `load` one of ``config/studies``."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from fl.base import fields, plugins
from fl.base.errors import ConfigError, FedloomError, Location
from fl.base.schema import DIVERGED
from fl.notebook import keys
from fl.notebook.display import Function, short_traceback, warn
from fl.notebook.result import Result
from fl.plan import config as config_files
from fl.plan import overrides, plan, plan_files, study_files
from fl.plan.config import Settings

FOLDER = Path("config")
"""Default config folder of calls."""

_first_states: dict[Path, tuple[int, int]] = {}
"""Time of change and size of each file at the first check."""


def with_named_arguments(function: Function) -> Function:
    """Return `run`, which says what to write if it is called with values without names."""

    @functools.wraps(function)
    def wrapper(*unnamed: Any, **arguments: Any) -> Any:
        if unnamed:
            problem = f"{keys.CALL}: {unnamed[0]!r} is given without a name"
            first = repr(unnamed[0]) if isinstance(unnamed[0], str) else "..."
            raise FedloomError(problem, advice=f"fl.run(dataset={first}, partition=..., ...)")
        return function(**arguments)

    return wrapper  # type: ignore[return-value]


@short_traceback
@with_named_arguments
def run(
    *,
    name: str = "notebook",
    config: str | Path | None = None,
    keep_weights: bool | None = None,
    progress: bool = True,
    **study: Any,
) -> Result:
    """Train a study that is written as a call, and return its results.

    The arguments are the keys of a file in ``config/studies`` (``docs/reference/config.md``):
    ``datasets``, ``partitions``, ``models``, ``methods``, ``seeds``, ``baseline`` and so on, as
    Python values.
    Also possible: ``dataset``, ``partition`` or ``model`` for a single one, and keys of
    ``training``, such as ``rounds=5``. A data set can be your own, see `arrays`; a DataFrame of
    pandas or a ``Dataset`` of Hugging Face stands where a path would, as in
    ``dataset={"table": {"frame": df, "label": "kind"}}``.

    A method, a term or an alteration can be a class of the notebook, or an instance, and a model a
    class:
    ``methods={"mine": Mine(strength=0.1)}``, for a grid ``{"mine": {"method": Mine, "strength":
    [0.1, 1.0]}}``. The class is written as in a plugin, see ``docs/guide/tutorial.md``. A model can
    also be a function, ``model=lambda shape, classes: nn.Sequential(...)``: further parameters have
    defaults and are keys. So can a class of ``nn.Module``, ``model=Net``, whose constructor takes
    ``shape`` and ``classes`` or needs nothing. ``{"model": Net, "width": [5, 10]}`` is a grid over
    keys of a model, a setting for each value. The source of a class or function, with the
    functions, classes and constants that it uses, becomes a plugin in ``results/classes``, and is
    part of the names of its runs.

    Portable runs are trained in a process of their own, which computes the same bits on all
    processors; ``arithmetic="native"`` trains in this process, as a debugger needs it.

    Runs have the same names as those of a study's file, and are in the same store: existing runs
    are not trained again, and an interrupted call continues when it is repeated. Paths are relative
    to the working directory. Notes on data and runs, such as a column that equals the label, are
    warnings of the class `FedloomWarning`.

    Args:
        name: Name of the study, for its report, which replaces that of an earlier call of the
            name.
        config: Config folder, whose ``config.yaml`` has the folders of results and data; by default
            ``config`` in the working directory. Without it: ``results`` and ``data`` there.
        keep_weights: Whether final weights are stored, which `Result.model` and
            `Result.predictions` need. By default weights of runs that are trained now are stored;
            True also trains existing runs without weights again.
        progress: Whether to show a progress bar, in a notebook or a terminal.
        study: The study's keys.

    Raises:
        FedloomError: For a wrong key, for data that cannot be used, and if every run fails. If only
            some runs fail or diverge, a warning names them.
        KeyboardInterrupt: When interrupted; finished runs and checkpoints are kept.
    """
    from fl.notebook import training
    from fl.pytorch.construction import seeded
    from fl.runner.runs import describe_failures

    folder, settings = settings_of(config)
    fields.value(bool, progress, keys.CALL / "progress")
    check_unedited()
    draft, settings = keys.study({**study, "keep_weights": bool(keep_weights)}, settings)
    _check_name(name, folder)
    # The caller's generators stay as they are, whatever a model draws, and so does PyTorch's state.
    with _default_state(), seeded(0):
        planned = plan.make(folder, {name: draft}, settings=settings)
        plan.write(planned)
        bundles = planned.bundles
        for line in (*planned.studies[name].notes, *training.unstackable(planned)):
            warn(line)
        failed = training.train(planned, bundles, keep_weights is not False, progress)
    training.check(failed, planned)
    for line in describe_failures(failed):
        warn(f"failed: {line}")
    result = Result(planned.studies[name], bundles, settings)
    for line in _diverged(result.runs()):
        warn(f"diverged: {line}")
    return result


@contextlib.contextmanager
def _default_state() -> Iterator[None]:
    """Compute gradients in float32 on the CPU within this context, as PyTorch does by default."""
    import torch

    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    try:
        torch.set_default_dtype(torch.float32)
        if device.type != "cpu":
            torch.set_default_device("cpu")
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)
        if device.type != "cpu":
            torch.set_default_device(device)


def _diverged(runs: pd.DataFrame) -> list[str]:
    """Return a line for each method and point with diverged runs."""
    groups = runs.drop_duplicates("run").groupby(["method", "point"], sort=False)["state"]
    counts = [(key, int((states == DIVERGED).sum()), len(states)) for key, states in groups]
    return [
        f"{method}{f' at {point}' if point else ''}, {diverged} of {n} runs"
        for (method, point), diverged, n in counts
        if diverged
    ]


@short_traceback
def load(study: str, config: str | Path | None = None) -> Result:
    """Return the results of a study of ``config/studies`` from stored runs; nothing is trained.

    Args:
        study: Name of the study, or ``name`` of a call of `run`, with the plan that this wrote.
        config: Config folder, by default ``config`` in the working directory.

    Raises:
        FedloomError: If the study does not exist, or cannot be planned.
    """
    folder, settings = settings_of(config)
    if plan_files.is_stored_alone(folder, settings.results, study):
        stored = plan_files.read_study(settings.results, study)
        bundles = {name: plan_files.read_bundle(settings.results, name) for name in stored.bundles}
        for bundle in bundles.values():
            plugins.use(bundle.plugins, Location("fl.load"))
        return Result(stored, bundles, settings)
    overrides.check_study(folder, study, Location("fl.load"))
    planned = plan.read(folder, [study])
    plan.supply(planned.runs, planned.settings)
    return Result(planned.studies[study], planned.bundles, planned.settings)


def settings_of(config: str | Path | None) -> tuple[Path, Settings]:
    """Return the config folder of a call and its settings.

    Args:
        config: The folder; None: ``config``, and default settings if it has no ``config.yaml``.

    Raises:
        FedloomError: For what is wrong with the settings.
    """
    folder = Path(config or FOLDER)
    if config is None and not (folder / "config.yaml").exists():
        return folder, Settings(studies=())
    settings = config_files.read_settings(folder)
    config_files.check_methods(folder)
    return folder, settings


def _check_name(name: str, folder: Path) -> None:
    """Refuse the name of a study in a file, whose plan and report the call would replace."""
    config_files.check_name(name, keys.CALL / "name")
    path = study_files.file(folder, name)
    if path.exists():
        problem = f"is {name!r}, which is the study in {path}"
        raise ConfigError(keys.CALL / "name", problem, advice="choose another name")


def check_unedited() -> None:
    """Refuse to train if a file of Fedloom or of a plugin has changed since it was imported.

    A run's name depends on the code on the disk, its results on the imported code. Each command
    imports the code again, but a notebook's kernel lives for days.

    Raises:
        FedloomError: If a file has changed.
    """
    for root in plugins.roots().values():
        for path in root.rglob("*.py"):
            stat = path.stat()
            state = stat.st_mtime_ns, stat.st_size
            if _first_states.setdefault(path, state) != state:
                raise FedloomError(
                    f"{os.path.relpath(path)}: was edited after this Python process imported it",
                    advice="restart Python (in a notebook: restart the kernel)",
                )
