"""``fedloom run``: Snakemake for those who do not know it."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fl.base.errors import EXIT_INTERRUPTED, FedloomError, Location
from fl.cli.commands import add_config_option
from fl.plan import config
from fl.workflow import selection

DRY_RUN = {"-n", "--dry-run", "--dryrun"}
CONFIG_OPTIONS = ("--config", "-C")
"""Options of Snakemake that `run` reads or adds to."""


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command ``name``."""
    add_config_option(parser)
    parser.add_argument("studies", nargs="*", help="studies (default: those in config.yaml)")
    selection.add_option(parser)
    parser.epilog = "Words behind -- are for Snakemake: fedloom run -- --cores 2 --dry-run"
    parser.set_defaults(run=_run)


def snakemake_words(
    studies: Sequence[str], only: Sequence[str], folder: Path, added: Sequence[str]
) -> list[str]:
    """Return the arguments of Snakemake.

    Args:
        studies: Names of studies.
        only: What to select of them.
        folder: Config folder.
        added: The user's arguments of Snakemake.
    """
    words = ["selected"] if only else []
    pairs = [f"studies={','.join(studies)}"] if studies else []
    pairs += [f"only={';'.join(only)}"] if only else []
    pairs += [f"config={folder}"] if folder != Path("config") else []
    index = next((i + 1 for i, word in enumerate(added) if word in CONFIG_OPTIONS), None)
    if not pairs:
        return [*words, *added]
    if index is None:
        return [*words, *added, "--config", *pairs]
    return [*words, *added[:index], *pairs, *added[index:]]


def _run(parsed: argparse.Namespace) -> int:
    names = config.split_names(parsed.studies)
    _check(parsed, names)
    words = snakemake_words(names, parsed.only, parsed.config, parsed.snakemake)
    # Ctrl-C reaches Snakemake too, which ends its jobs and then itself.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "snakemake", *words],
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process:
            status = process.wait()
    finally:
        signal.signal(signal.SIGINT, handler)
    if status or DRY_RUN & {*parsed.snakemake}:
        return EXIT_INTERRUPTED if status < 0 else status
    from fl.cli.results import show  # Snakemake need not wait for what only reports import.

    for study in names or config.read_settings(parsed.config).studies:
        show(argparse.Namespace(**{**vars(parsed), "study": study, "planned": False, "table": ""}))
    return 0


def _check(parsed: argparse.Namespace, names: Sequence[str]) -> None:
    """Raise an error for what Snakemake would say in words of its own."""
    if not Path("Snakefile").exists():
        raise FedloomError("Snakefile: does not exist in this folder", advice="fedloom init")
    if not config.is_installed("snakemake"):
        raise FedloomError(
            "Snakemake is not installed", advice="python -m pip install 'fedloom[workflow]'"
        )
    selection.parse(parsed.only)
    for name in names:
        config.read_study(parsed.config, name, Location("the command line"))
