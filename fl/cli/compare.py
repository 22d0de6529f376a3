"""The command ``fedloom compare``: a method on the tracks, beside all entries that are kept."""

from __future__ import annotations

import argparse
from pathlib import Path

from fl.base.errors import ConfigError, FedloomError
from fl.base.files import disk_errors, write_bytes
from fl.cli.commands import add_config_option, loading, say, table_lines, warnings_as_lines
from fl.plan import overrides

FIGURES = (".pdf", ".svg")
"""Endings of the files of figures."""

OPTIONS = ("only", "no_op", "config", "method", "progress")
"""Arguments of `fl.compare` that are no keys of an entry."""


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command."""
    add_config_option(parser)
    parser.usage = (
        "fedloom compare METHOD [KEY=VALUE ...] [--only TRACK] [--no-op KEY=VALUE,is=ENTRY]\n"
        "                       [--others] [--latex] [--figure FILE]"
    )
    parser.add_argument(
        "words",
        metavar="METHOD | KEY=VALUE",
        nargs="+",
        help="a method, or an entry of the tracks; its hyper-parameters and training keys, in "
        "YAML: mu=0.1, a grid: 'mu=[0.1, 1]'",
    )
    parser.add_argument(
        "--only",
        metavar="TRACK",
        action="append",
        help="this track alone; can be repeated (default: all)",
    )
    parser.add_argument(
        "--no-op",
        metavar="KEY=VALUE,is=ENTRY",
        help="values of a grid at which the method is another entry: mu=0,is=fedavg",
    )
    parser.add_argument(
        "--others", action="store_true", help="tables with all kept entries of its families, too"
    )
    parser.add_argument("--latex", action="store_true", help="print tables in LaTeX")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw all: *.pdf or *.svg")
    parser.set_defaults(run=_compare)


def _compare(parsed: argparse.Namespace) -> None:
    figure = parsed.figure
    if figure and figure.suffix not in FIGURES:
        raise FedloomError(f"--figure: is {str(figure)!r}", ", ".join(f"*{end}" for end in FIGURES))
    if figure and not figure.absolute().parent.is_dir():
        raise FedloomError(f"--figure: {figure.parent} is no folder", advice="make it first")
    names, words = overrides.split(parsed.words)
    if len(names) != 1:
        problem = f"names {len(names)} methods: {', '.join(names)}" if names else "names no method"
        raise ConfigError(overrides.COMMAND_LINE, problem, "one", "METHOD mu=0.1")
    keys = overrides.entry_keys(words)
    for key in OPTIONS:
        if key in keys:
            problem, advice = "is no key of a method", "fedloom compare --help"
            raise ConfigError(overrides.COMMAND_LINE / key, problem, advice=advice)
    no_op = None
    if parsed.no_op:
        others, words = overrides.split([parsed.no_op])
        if others:
            raise FedloomError(f"--no-op: {others[0]} is no KEY=VALUE", "mu=0,is=fedavg")
        no_op = overrides.entry_keys(words)
    with loading():
        from fl.notebook.compare import compare
    with warnings_as_lines():
        comparison = compare(names[0], only=parsed.only, no_op=no_op, config=parsed.config, **keys)
    text = comparison.to_latex(parsed.others) if parsed.latex else repr(comparison)
    for line in text.splitlines():
        say(line)
    if parsed.others and not parsed.latex:
        for table in comparison.tables(others=True):
            for line in table_lines(table):
                say(line)
    if figure:
        with disk_errors(figure):
            write_bytes(figure, comparison.picture().files()[figure.suffix])
        say(f"wrote {figure}")
