"""``fedloom status``: the progress of the planned runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from fl.cli.commands import add_config_option, add_words, say
from fl.cli.stores import readable
from fl.plan import config, overrides
from fl.workflow import status
from fl.workflow.estimate import Rates


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command ``name``."""
    add_config_option(parser)
    add_words(parser, "studies of the plan (default: all of it)")
    parser.set_defaults(run=_status)


def _status(parsed: argparse.Namespace) -> None:
    settings = config.read_settings(parsed.config)
    store = readable(settings.store)
    results = Path(settings.results)
    names = overrides.resolve(parsed.config, parsed.words)
    statuses = status.run_statuses(status.bundles(results, names), store, results)
    say(f"plan of {', '.join(names or status.studies(results))}")
    for line in (*status.lines(statuses, Rates(store)), *status.report_lines(results, names)):
        say(line)
