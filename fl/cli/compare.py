"""The command ``fedloom compare``: a method on the tracks, beside all entries that are kept."""

from __future__ import annotations

import argparse
from pathlib import Path

from fl.base.errors import ConfigError, FedloomError
from fl.base.files import disk_errors, write_bytes
from fl.cli.commands import add_config_option, loading, say, warnings_as_lines
from fl.plan import overrides

FIGURES = (".pdf", ".svg")
"""Endings of the files of figures."""

OPTIONS = ("only", "config", "method", "progress")
"""Arguments of `fl.compare` that are no keys of an entry."""


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command."""
    add_config_option(parser)
    parser.usage = "fedloom compare METHOD [KEY=VALUE ...] [--only TRACK] [--latex] [--figure FILE]"
    parser.add_argument("method", help="its name, or that of an entry of the tracks")
    parser.add_argument(
        "keys",
        metavar="KEY=VALUE",
        nargs="*",
        help="its hyper-parameters and training keys, in YAML: mu=0.1, a grid: 'mu=[0.1, 1]'",
    )
    parser.add_argument("--only", metavar="TRACK", help="one track (default: all)")
    parser.add_argument("--latex", action="store_true", help="print a table in LaTeX")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw all: *.pdf or *.svg")
    parser.set_defaults(run=_compare)


def _compare(parsed: argparse.Namespace) -> None:
    figure = parsed.figure
    if figure and figure.suffix not in FIGURES:
        raise FedloomError(f"--figure: is {str(figure)!r}", ", ".join(f"*{end}" for end in FIGURES))
    names, words = overrides.split([parsed.method, *parsed.keys])
    if len(names) != 1:
        problem = f"{' '.join(names)!r} is not one method"
        raise ConfigError(overrides.COMMAND_LINE, problem, advice="METHOD mu=0.1")
    keys = overrides.entry_keys(words)
    for key in OPTIONS:
        if key in keys:
            problem, advice = "is no key of a method", "fedloom compare --help"
            raise ConfigError(overrides.COMMAND_LINE / key, problem, advice=advice)
    with loading():
        from fl.notebook.compare import compare
    with warnings_as_lines():
        comparison = compare(names[0], only=parsed.only, config=parsed.config, **keys)
    for line in (comparison.to_latex() if parsed.latex else repr(comparison)).splitlines():
        say(line)
    if figure:
        with disk_errors(figure):
            write_bytes(figure, comparison.picture().files()[figure.suffix])
        say(f"wrote {figure}")
