"""Extra: commands that train a stored run again, or take runs and studies from and to others."""

from __future__ import annotations

import argparse
import contextlib
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO
from urllib.parse import urlparse

from fl.base import folders
from fl.base.errors import ConfigError, FedloomError, FedloomWarning, Location
from fl.base.files import disk_errors
from fl.base.units import quantity
from fl.cli import store_commands
from fl.cli.commands import add_config_option, loading, say
from fl.cli.store_commands import AddCommand, planned_runs, runs_of_studies, table
from fl.cli.stores import find_run, readable, store_of
from fl.extra import import_export
from fl.extra.import_export import BUSY, CONFLICT, DAMAGED, EXISTING, NEW, Copied
from fl.plan import config, study_files, yaml_text
from fl.store.run_record import run_of
from fl.store.store import Store

LICENCE = "https://spdx.org/licenses/Apache-2.0"
"""Default licence of an exported study: that of Fedloom."""

OPTION_BY_KEY = {
    "only": "--only TRACK",
    "config": "--config FOLDER",
    "method": "fedloom compare METHOD",
    "progress": "fl.compare(METHOD, progress=...) in Python",
}
"""What to write in place of an argument of `fl.compare` that is no key of an entry."""


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command ``name``."""
    add_config_option(parser)
    if name == "compare":
        parser.usage = (
            "fedloom compare METHOD [KEY=VALUE ...] [--only TRACK] [--latex] [--figure FILE]"
        )
        parser.add_argument("method", help="its name, or that of an entry of the tracks")
        parser.add_argument(
            "keys",
            metavar="KEY=VALUE",
            nargs="*",
            help="its hyper-parameters and training keys, in YAML: mu=0.1, a grid: 'mu=[0.1, 1]'",
        )
        parser.add_argument(
            "--only", metavar="TRACK", help=f"one track (default: all): {', '.join(_tracks())}"
        )
        parser.add_argument("--latex", action="store_true", help="print a table in LaTeX")
        parser.add_argument(
            "--figure", type=Path, metavar="FILE", help="draw: *.pdf, *.svg or *.png"
        )
        parser.set_defaults(run=_compare)
    elif name == "recompute":
        parser.add_argument(
            "run_prefix",
            metavar="RUN",
            type=run_of,
            help="a run's id, its first characters, or its folder",
        )
        parser.add_argument("--store", type=Path, help="folder of runs (default: the config's)")
        parser.add_argument(
            "--anyway", action="store_true", help="even if another version of the code trained it"
        )
        parser.set_defaults(run=_recompute)
    else:
        parser.add_argument("study")
        parser.add_argument(
            "--crate", type=Path, required=True, help="a new folder, or a file *.zip"
        )
        parser.add_argument(
            "--license", default=LICENCE, help=f"address of the licence (default: {LICENCE})"
        )
        parser.set_defaults(run=_export_study)


def _tracks() -> list[str]:
    """Return the names of the package's tracks, without importing `fl.report.tracks`."""
    prefix = "track-"
    names = study_files.files(folders.CONFIG)
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


def add_store_commands(command: AddCommand) -> None:
    """Add ``adopt``, ``export`` and ``import`` to ``fedloom store``."""
    sub = command("adopt", _adopt, "list runs of other code that have the spec of a planned run")
    sub.add_argument("runs", nargs="*", type=run_of, help="only these runs")
    sub.add_argument("--yes", action="store_true", help="store them as the planned runs")
    for name, run, help in (
        ("export", _export_runs, "copy finished runs to another store, or to a new tar file"),
        ("import", _import_runs, "copy finished runs from another store or a tar file"),
    ):
        sub = command(name, run, help)
        sub.add_argument("path", metavar="PATH", type=Path, help="a folder, or a file named *.tar")
        sub.add_argument("studies", nargs="*", help="only runs of these studies")
        sub.add_argument(
            "--planned", action="store_true", help="only runs of the plan that Snakemake wrote"
        )


def _compare(parsed: argparse.Namespace) -> None:
    figure = parsed.figure
    if figure and figure.suffix not in (".pdf", ".svg", ".png"):
        raise FedloomError(f"--figure: is {str(figure)!r}", "*.pdf, *.svg, *.png")
    keys = _entry_keys(parsed.keys)
    with loading():
        from fl.notebook.compare import compare
    with _warnings_as_lines():
        comparison = compare(parsed.method, only=parsed.only, config=parsed.config, **keys)
    text = comparison.to_latex() if parsed.latex else repr(comparison)
    for line in text.splitlines():
        say(line)
    if figure and (canvas := comparison.plot().get_figure(root=True)):
        with disk_errors(figure):
            canvas.savefig(figure, bbox_inches="tight")
        say(f"wrote {figure}")


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print a `FedloomWarning` as a line on stderr, without a line of code, which says nothing."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_line(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, FedloomWarning):
                say(f"warning: {message}", file=sys.stderr)
            else:
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = show_line
        yield


def _entry_keys(words: Iterable[str]) -> config.Values:
    """Return the keys of an entry that ``KEY=VALUE`` words give, with values in YAML."""
    location = Location("the command line")
    keys: config.Values = {}
    for word in words:
        key, sign, text = word.partition("=")
        if not (key and sign):
            raise ConfigError(location, f"{word!r} is not KEY=VALUE", advice="mu=0.1")
        if key in keys:
            raise ConfigError(location / key, "occurs twice", advice=f"a grid: '{key}=[0.1, 1]'")
        if key in OPTION_BY_KEY:
            raise ConfigError(location / key, "is no key of a method", advice=OPTION_BY_KEY[key])
        keys = {**keys, key: yaml_text.parse(text, location / key)}
    return keys


def _recompute(parsed: argparse.Namespace) -> int:
    settings = config.read_settings(parsed.config)
    store = readable(parsed.store or settings.store)
    runs = store.runs()
    searched, advice = f"{len(runs)} runs in {store.root}", "list runs with `fedloom store ls`"
    run = find_run(parsed.run_prefix, runs, searched, advice)
    with loading():
        from fl.data.download import LOCK_FILE as LOCK
        from fl.extra import recompute
    comparison = recompute.recompute(run, store, settings, parsed.config / LOCK, parsed.anyway)
    for line in recompute.comparison_lines(comparison):
        say(line)
    return int(not all(difference.is_equal for difference in comparison.differences))


def _export_study(parsed: argparse.Namespace) -> None:
    from fl.extra import crate

    address = urlparse(parsed.license)
    if address.scheme not in ("http", "https") or not address.hostname or " " in parsed.license:
        raise FedloomError(f"--license: is {parsed.license!r}", f"an address, such as {LICENCE}")
    for line in crate.write(parsed.config, parsed.study, parsed.crate, parsed.license):
        say(line)


def _adopt(parsed: argparse.Namespace) -> int:
    from fl.plan import adoption, plan

    store = store_of(parsed)
    store_commands.require_stored(store, parsed.runs)
    members = plan.read(parsed.config, checked=False).runs
    stored_runs = {
        planned: run
        for planned, run in adoption.stored_by_spec(store, members).items()
        if run in parsed.runs or not parsed.runs
    }
    sources = {*stored_runs.values()}
    for line in table(
        stored for stored in store_commands.stored_runs(store) if stored.run in sources
    ):
        say(line)
    say(f"{quantity(len(stored_runs), 'run')} of other code with the spec of a planned run")
    if not parsed.yes:
        say("Numbers of other code may differ: compare some by `fedloom recompute RUN --anyway`")
        say("nothing was changed; --yes stores them as the planned runs, too")
        return 0
    adopted = [adoption.adopt_run(store, run, members[name]) for name, run in stored_runs.items()]
    say(f"{quantity(sum(adopted), 'run')} adopted")
    return int(not all(adopted))


def _export_runs(parsed: argparse.Namespace) -> int:
    source = store_of(parsed)
    runs = _selected_runs(parsed, source)
    if parsed.planned and (missing := planned_runs(parsed.config) - {*source.runs()}):
        count = quantity(len(missing), "run")
        problem = f"{source.root}: {count} of the plan are missing, such as {min(missing)}"
        raise FedloomError(problem, advice="train them first with `snakemake`")
    if import_export.is_tar(parsed.path):
        return _print_outcomes(import_export.write_tar(runs, source, parsed.path))
    target = Store(parsed.path)
    return _print_outcomes(import_export.copy_run(run, source, target) for run in runs)


def _import_runs(parsed: argparse.Namespace) -> int:
    target = store_of(parsed, creates=True)
    with import_export.open_source(parsed.path) as source:
        runs = _selected_runs(parsed, source)
        return _print_outcomes(import_export.copy_run(run, source, target) for run in runs)


def _selected_runs(parsed: argparse.Namespace, source: Store) -> list[str]:
    """Return the finished runs of ``source`` that the command line selects."""
    runs = source.runs()
    if parsed.planned:
        runs = sorted({*runs} & planned_runs(parsed.config))
    if parsed.studies:
        runs = sorted({*runs} & runs_of_studies(parsed.config, parsed.studies))
    return runs


def _print_outcomes(moved: Iterable[Copied]) -> int:
    """Print the outcome for each run; return 1 if one is damaged or in conflict."""
    counts: Counter[str] = Counter()
    for move in moved:
        counts[move.outcome] += 1
        if move.outcome != NEW and move.outcome != EXISTING:
            say(f"{move.run} {move.outcome}" + (f": {move.reason}" if move.reason else ""))
    outcomes = (NEW, EXISTING, BUSY, CONFLICT, DAMAGED)
    say(", ".join(f"{counts[o]} {o}" for o in outcomes if counts[o]) or "no runs")
    return int(bool(counts[CONFLICT] or counts[DAMAGED]))
