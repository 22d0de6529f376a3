"""Commands of extras."""

from __future__ import annotations

import argparse
from pathlib import Path
from urllib.parse import urlparse

from fl.base.errors import FedloomError
from fl.cli.commands import PUBLISH, Commands, loading, say
from fl.cli.store_commands import readable
from fl.plan import config

LICENCE = "https://spdx.org/licenses/Apache-2.0"
"""Default licence of an exported study: that of Fedloom."""


def add_commands(commands: Commands) -> None:
    """Add ``recompute`` and ``export``; joins `fl.cli.commands.COMMANDS`."""
    parser = commands.add(
        PUBLISH, "recompute", _recompute, "train a stored run again and compare its metrics"
    )
    parser.add_argument("run_prefix", metavar="RUN", help="a run's id, or its first characters")
    parser.add_argument("--store", type=Path, help="folder of runs (default: the config's)")
    parser.add_argument(
        "--anyway", action="store_true", help="even if another version of the code trained it"
    )
    parser = commands.add(
        *(PUBLISH, "export", _export),
        "write a study with code, data sources and results as an RO-Crate",
    )
    parser.add_argument("study")
    parser.add_argument("--crate", type=Path, required=True, help="a new folder, or a file *.zip")
    parser.add_argument(
        "--license", default=LICENCE, help=f"address of the licence (default: {LICENCE})"
    )


def _recompute(parsed: argparse.Namespace) -> int:
    from fl.extra import recomputed

    settings = config.read_settings(parsed.config)
    store = readable(parsed.store or settings.store)
    run = recomputed.matching_run(parsed.run_prefix, store)
    with loading():
        from fl.data.download import LOCK_FILE as LOCK
        from fl.extra.recompute import recompute
    comparison = recompute(run, store, settings, parsed.config / LOCK, parsed.anyway)
    for line in recomputed.lines(comparison):
        say(line)
    return int(not all(difference.is_equal for difference in comparison.differences))


def _export(parsed: argparse.Namespace) -> None:
    from fl.extra import crate

    address = urlparse(parsed.license)
    if address.scheme not in ("http", "https") or not address.hostname or " " in parsed.license:
        raise FedloomError(f"--license: is {parsed.license!r}", f"an address, such as {LICENCE}")
    for line in crate.write(parsed.config, parsed.study, parsed.crate, parsed.license):
        say(line)
