"""Commands of extras."""

from __future__ import annotations

import argparse
from pathlib import Path
from urllib.parse import urlparse

from fl.base.errors import FedloomError
from fl.cli.commands import PUBLISH, Commands
from fl.cli.printing import say

LICENCE = "https://spdx.org/licenses/Apache-2.0"
"""Default licence of an exported study: that of Fedloom."""


def add_commands(commands: Commands) -> None:
    """Add the command ``export``; joins `fl.cli.commands.COMMANDS`."""
    parser = commands.add(
        *(PUBLISH, "export", _export),
        "write a study with code, data sources and results as an RO-Crate",
    )
    parser.add_argument("study")
    parser.add_argument("--crate", type=Path, required=True, help="a new folder, or a file *.zip")
    parser.add_argument(
        "--license", default=LICENCE, help=f"address of the licence (default: {LICENCE})"
    )


def _export(parsed: argparse.Namespace) -> None:
    from fl.extra import crate

    address = urlparse(parsed.license)
    if address.scheme not in ("http", "https") or not address.hostname or " " in parsed.license:
        raise FedloomError(f"--license: is {parsed.license!r}", f"an address, such as {LICENCE}")
    for line in crate.write(parsed.config, parsed.study, parsed.crate, parsed.license):
        say(line)
