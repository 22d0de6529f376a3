"""The command ``fedloom compare``: a method on the tracks, beside all that are published."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from fl.base import folders
from fl.base.errors import ConfigError, FedloomError, Location
from fl.base.files import disk_errors
from fl.cli.commands import add_config_option, loading, say, warnings_as_lines
from fl.plan import config, study_files, yaml_text

OPTION_BY_KEY = {
    "only": "--only TRACK",
    "config": "--config FOLDER",
    "method": "fedloom compare METHOD",
    "progress": "fl.compare(METHOD, progress=...) in Python",
}
"""Words to write in place of an argument of `fl.compare` that is no key of an entry."""


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
    tracks = ", ".join(study_files.tracks(folders.CONFIG))
    parser.add_argument("--only", metavar="TRACK", help=f"one track (default: all): {tracks}")
    parser.add_argument("--latex", action="store_true", help="print a table in LaTeX")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw: *.pdf, *.svg or *.png")
    parser.set_defaults(run=_compare)


def _compare(parsed: argparse.Namespace) -> None:
    figure = parsed.figure
    if figure and figure.suffix not in (".pdf", ".svg", ".png"):
        raise FedloomError(f"--figure: is {str(figure)!r}", "*.pdf, *.svg, *.png")
    keys = _entry_keys(parsed.keys)
    with loading():
        from fl.notebook.compare import compare
    with warnings_as_lines():
        comparison = compare(parsed.method, only=parsed.only, config=parsed.config, **keys)
    text = comparison.to_latex() if parsed.latex else repr(comparison)
    for line in text.splitlines():
        say(line)
    if figure and (canvas := comparison.plot().get_figure(root=True)):
        with disk_errors(figure):
            canvas.savefig(figure, bbox_inches="tight")
        say(f"wrote {figure}")


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
