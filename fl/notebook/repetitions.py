"""Repetitions of a study that measure how far rounding alone moves its results."""

from __future__ import annotations

from pathlib import Path

from fl.base.errors import DataError
from fl.base.schema import MISSING
from fl.base.units import quantity
from fl.notebook.result import Result
from fl.notebook.run import load, run
from fl.plan import study_files
from fl.plan.config import Values, read_yaml
from fl.report.facts import Facts, gather

LEFT_OUT = ("analyses", "published")
"""Keys of a study that its repetitions do not need."""


def _repeat(name: str, study: Values, number: int, config: Path) -> Result:
    """Train a study again, with other last bits of the weights with which its runs begin.

    The runs stay in the store, so that what was trained is not trained again.

    Args:
        name: Name of the study.
        study: The study, as its file has it.
        number: Number of the repetition, from 1 on.
        config: The config folder.
    """
    keys = {key: value for key, value in study.items() if key not in LEFT_OUT}
    keys["training"] = {**(study.get("training") or {}), "rounding": number}
    return run(
        name=f"{name}-rounding-{number}",
        config=config if (config / "config.yaml").exists() else None,
        **keys,
    )


def repetitions(name: str, number: int, config: Path) -> tuple[Facts, list[Facts]]:
    """Return a study of a config folder, and its repetitions; missing ones are trained.

    Args:
        name: The study.
        number: Number of repetitions.
        config: The config folder.

    Raises:
        FedloomError: If runs of the study itself are missing, and as `fl.run`.
    """
    facts = _facts(load(name, config))
    if missing := int((facts.runs["state"] == MISSING).sum()):
        problem = f"{name}: {missing} of {quantity(len(facts.runs), 'run')} are missing"
        raise DataError(problem, advice=f"fedloom run {name}")
    study = read_yaml(study_files.file(config, name))
    results = [_repeat(name, study, k, config) for k in range(1, number + 1)]
    return facts, [*map(_facts, results)]


def _facts(result: Result) -> Facts:
    """Return what a report of a result is made from; nothing is written."""
    results, store = Path(result.settings.results), Path(result.settings.store)
    return gather(result.study.study, results, store, result.study, writes_tables=False)
