"""The command ``fedloom export``: a study with code, data sources and results as an RO-Crate."""

from __future__ import annotations

import argparse
from pathlib import Path
from urllib.parse import urlparse

from fl.base.errors import FedloomError
from fl.cli.commands import add_config_option, say

LICENCE = "https://spdx.org/licenses/Apache-2.0"
"""Default licence of an exported study: that of Fedloom."""


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command."""
    add_config_option(parser)
    parser.add_argument("study")
    parser.add_argument("--crate", type=Path, required=True, help="a new folder, or a file *.zip")
    parser.add_argument(
        "--license", default=LICENCE, help=f"address of the licence (default: {LICENCE})"
    )
    parser.set_defaults(run=_export_study)


def _export_study(parsed: argparse.Namespace) -> None:
    from fl.cli import crate  # It imports reports, which takes a second.

    address = urlparse(parsed.license)
    if address.scheme not in ("http", "https") or not address.hostname or " " in parsed.license:
        raise FedloomError(f"--license: is {parsed.license!r}", f"an address, such as {LICENCE}")
    for line in crate.write(parsed.config, parsed.study, parsed.crate, parsed.license):
        say(line)
