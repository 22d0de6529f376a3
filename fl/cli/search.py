"""The command ``fedloom search``: hyper-parameters by Optuna, every trial trained by Snakemake."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from fl.base import files
from fl.base.errors import ConfigError, Location
from fl.base.schema import MISSING
from fl.cli import run_command
from fl.cli.commands import add_config_option, loading, say, warnings_as_lines
from fl.plan import config, overrides, study_files

if TYPE_CHECKING:
    from fl.notebook.result import Result
    from fl.plan.config import Values
    from fl.plan.study_plan import StudyPlan

MARK = "# Written by `fedloom search"
"""Beginning of a study that may be written anew."""
FOLDER = "search"
"""Folder of the tables of trials, in that of results."""


class _Stopped(Exception):
    """Training that ended with an exit status, of which everything is said."""

    def __init__(self, status: int) -> None:
        self.status = status


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command."""
    add_config_option(parser)
    parser.add_argument("words", metavar="STUDY", nargs="+", help="a study with the key search")
    parser.epilog = (
        "All trials are the study STUDY-trials, those that are chosen STUDY-chosen, both in the "
        "folder of STUDY. Words behind -- are for Snakemake: "
        "fedloom search STUDY -- --profile slurm"
    )
    parser.set_defaults(run=_search)


def _search(parsed: argparse.Namespace) -> int:
    run_command.check_workflow()
    folder, name = parsed.config, _name(parsed.words)
    settings = config.read_settings(folder)
    values, location = config.read_values(folder, name, overrides.COMMAND_LINE)
    with loading():
        from fl.notebook.run import load
        from fl.notebook.search import CHOSEN, TRIALS, find
        from fl.plan import plan

    files_of = {
        suffix: study_files.file(folder, name).with_name(f"{name}-{suffix}.yaml")
        for suffix in (TRIALS, CHOSEN)
    }
    for path in files_of.values():
        _check_written(path)

    def check(keys: Values, place: Location) -> StudyPlan:
        draft = config.parse_draft(keys, place)
        return plan.make(folder, {name: draft}, settings=settings).studies[name]

    def train(suffix: str, keys: Values) -> Result:
        study = f"{name}-{suffix}"
        _write(files_of[suffix], name, keys)
        result = load(study, folder)
        if (result.runs()["state"] != MISSING).all():
            return result
        added = ["selected", *parsed.snakemake]
        words = run_command.snakemake_words([study], (), folder, added)
        if status := run_command.train(words, folder, is_shown=bool(parsed.snakemake)):
            raise _Stopped(status)
        return load(study, folder)

    try:
        with warnings_as_lines():
            result = find(
                values, location, check, train, lambda line: say(f"{name}: {line}", sys.stderr)
            )
    except _Stopped as stopped:
        say(f"stopped; `fedloom search {name}` goes on", file=sys.stderr)
        return stopped.status
    table = Path(settings.results) / FOLDER / f"{name}.csv"
    with files.disk_errors(table):
        table.parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(table, result.trials.to_csv(index=False, lineterminator="\n").encode())
    for line in repr(result).splitlines():
        say(line)
    say(f"all trials: {table}, fedloom report {name}-trials")
    return 0


def _name(words: Sequence[str]) -> str:
    """Return the study that the words name, or raise `ConfigError`."""
    names, added = overrides.split(words)
    if added:
        problem = f"{' '.join(added)}: a search writes studies beside the file, with its keys alone"
        advice = (
            f"{', '.join(word.replace('=', ': ', 1) for word in added)} in the file of the study"
        )
        raise ConfigError(overrides.COMMAND_LINE, problem, advice=advice)
    if len(names) != 1:
        problem = f"{len(names)} studies are named, and not one"
        raise ConfigError(overrides.COMMAND_LINE, problem, advice=f"fedloom search {names[0]}")
    return names[0]


def _check_written(path: Path) -> None:
    """Raise `ConfigError` for a study that is a user's own, and would be replaced."""
    if path.exists() and not path.read_text(encoding="utf-8").startswith(MARK):
        problem = "is not written by a search, and would be replaced"
        raise ConfigError(Location(os.path.relpath(path)), problem, advice="rename it")


def _write(path: Path, name: str, values: Values) -> None:
    """Write a study of a search, unless it is there."""
    text = f"{MARK} {name}`, which writes it anew.\n"
    text += yaml.safe_dump(values, sort_keys=False, default_flow_style=None, allow_unicode=True)
    with files.disk_errors(path):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            files.write_bytes(path, text.encode())
