"""``fedloom watch``: what failed, and a line with round, curve and time left for each run."""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path

from fl.base.errors import optional_package
from fl.cli.commands import add_config_option, add_words
from fl.cli.stores import readable
from fl.plan import config, overrides
from fl.plan.config import Settings

EXTRA = "python -m pip install 'fedloom[watch]'"
"""Command that installs what this command needs."""


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command ``name``."""
    add_config_option(parser)
    add_words(parser, "studies of the plan, or names of calls of fl.run (default: the plan)")
    parser.add_argument("--once", action="store_true", help="print the page once, and end")
    parser.set_defaults(run=_watch)


def _watch(parsed: argparse.Namespace) -> None:
    with optional_package("fedloom watch", EXTRA):
        from rich.console import Console, Group
        from rich.live import Live
        from rich.text import Text

        from fl.workflow.watch import Watch, pages
    # A call of `fl.run` needs no config.
    is_config = (parsed.config / "config.yaml").exists() or not parsed.words
    settings = config.read_settings(parsed.config) if is_config else Settings(studies=())
    names = overrides.resolve(parsed.config, parsed.words)
    watch = Watch(Path(settings.results), readable(settings.store), names)
    console = Console(highlight=False)

    def size() -> tuple[int, int]:
        return console.width, console.height - 1

    if not console.is_terminal or parsed.once:
        watch.read()
        console.print(watch.page(*size()))
        return
    page = Group()
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        for page in pages(watch, size, parsed.config if is_config else None):
            clock = f"{time.strftime('%H:%M:%S')}  Ctrl-C ends this page, and no training"
            live.update(Group(page, Text(clock, "dim")), refresh=True)
    console.print("\n", page, sep="")  # The page of `Live` is gone.
