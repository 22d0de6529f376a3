"""``fedloom run``: Snakemake for those who do not know it.

The terminal shows the progress of runs and the results; what Snakemake prints goes to a log.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fl.base.errors import EXIT_INTERRUPTED, FedloomError
from fl.base.files import disk_errors
from fl.cli.commands import add_config_option, add_words, say
from fl.plan import config, overrides
from fl.workflow import selection
from fl.workflow.monitor import FAILED, TERMINAL_VARIABLE

LOG = Path("logs") / "snakemake.log"
"""Log of the last call, in the folder of results."""
LAST_LINES = 30
"""Lines of the log that are shown after a failure."""

DRY_RUN = {"-n", "--dry-run", "--dryrun"}
CONFIG_OPTIONS = ("--config", "-C")
"""Options of Snakemake that `run` reads or adds to."""


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command ``name``."""
    add_config_option(parser)
    add_words(parser, "studies (default: those in config.yaml)")
    selection.add_option(parser)
    parser.epilog = (
        "Words behind -- are for Snakemake, whose lines are then shown: "
        "fedloom run -- --cores 2 --dry-run"
    )
    parser.set_defaults(run=_run)


def snakemake_words(
    studies: list[str], only: Sequence[str], folder: Path, added: Sequence[str]
) -> list[str]:
    """Return the arguments of Snakemake.

    Args:
        studies: Names of studies, and overrides.
        only: What to select of them.
        folder: Config folder.
        added: The user's arguments of Snakemake.
    """
    words = ["selected"] if only else []
    # Snakemake reads JSON as a list, in which overrides may have spaces and commas.
    listed = json.dumps(studies) if any("=" in word for word in studies) else ",".join(studies)
    pairs = [f"studies={listed}"] if studies else []
    pairs += [f"only={';'.join(only)}"] if only else []
    pairs += [f"config={folder}"] if folder != Path("config") else []
    index = next((i + 1 for i, word in enumerate(added) if word in CONFIG_OPTIONS), None)
    if not pairs:
        return [*words, *added]
    if index is None:
        return [*words, *added, "--config", *pairs]
    return [*words, *added[:index], *pairs, *added[index:]]


def _run(parsed: argparse.Namespace) -> int:
    names = _checked_names(parsed)
    studies = [word for listed in overrides.split(parsed.words) for word in listed]
    words = snakemake_words(studies, parsed.only, parsed.config, parsed.snakemake)
    status = train(words, parsed.config, is_shown=bool(parsed.snakemake))
    if status or DRY_RUN & {*parsed.snakemake}:
        return status
    from fl.cli.results import show  # Snakemake need not wait for what only reports import.

    for study in names or config.read_settings(parsed.config).studies:
        words = overrides.as_words(study)
        show(argparse.Namespace(**{**vars(parsed), "words": words, "planned": False, "table": ""}))
    return 0


def train(words: Sequence[str], folder: Path, is_shown: bool) -> int:
    """Run Snakemake, and return the exit status of the program.

    Args:
        words: Its arguments, `snakemake_words`.
        folder: Config folder.
        is_shown: Whether its lines are shown; else they go to a log, whose end is shown after a
            failure.
    """
    log = None if is_shown else _new_log(Path(config.read_settings(folder).results))
    status = _snakemake(words, log)
    if status > 0 and log:
        for line in _last_lines(log):
            say(line, file=sys.stderr)
        say(f"All lines of Snakemake and its jobs: {log}", file=sys.stderr)
    return EXIT_INTERRUPTED if status < 0 else status


def _new_log(results: Path) -> Path:
    """Make the empty log, and tell its path."""
    path = results / LOG
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # A second call at the same time goes on writing to the file that it has opened.
        path.unlink(missing_ok=True)
        path.touch()
    say(f"Planning. Log: {path}", file=sys.stderr)
    return path


def _snakemake(words: Sequence[str], log: Path | None) -> int:
    """Run Snakemake, and return its exit status.

    Args:
        words: Its arguments.
        log: File for what it and its jobs print; None: the terminal.
    """
    command = [sys.executable, "-m", "snakemake", *words]
    # Ctrl-C reaches Snakemake too, which ends its jobs and then itself.
    handlers = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, _interrupt_children),
    }

    def restore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    try:
        if log is None:
            return subprocess.run(command, preexec_fn=restore).returncode
        terminal = os.dup(2)
        try:
            with log.open("ab") as file:
                return subprocess.run(
                    command,
                    preexec_fn=restore,
                    stdout=file,
                    stderr=file,
                    pass_fds=[terminal],
                    env={**os.environ, TERMINAL_VARIABLE: str(terminal)},
                ).returncode
        finally:
            os.close(terminal)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _interrupt_children(number: int, frame: object) -> None:
    """Send Snakemake and its jobs what a terminal would send them on Ctrl-C."""
    import psutil  # Snakemake has it.

    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGINT)


def _last_lines(log: Path) -> Iterator[str]:
    """Return the end of a log, without the list of unfinished runs, which was shown already."""
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = text.partition(f"{FAILED}\n")[0].rstrip().splitlines()[-LAST_LINES:]
    yield from (line for line in lines if not line.startswith("Using workflow specific profile"))


def check_workflow() -> None:
    """Raise `FedloomError` for what Snakemake would say in words of its own."""
    if not Path("Snakefile").exists():
        raise FedloomError("Snakefile: does not exist in this folder", advice="fedloom init")
    if not config.is_installed("snakemake"):
        raise FedloomError(
            "Snakemake is not installed", advice="python -m pip install 'fedloom[workflow]'"
        )


def _checked_names(parsed: argparse.Namespace) -> list[str]:
    """Return the studies, or raise an error for what Snakemake would say in words of its own."""
    check_workflow()
    selection.parse(parsed.only)
    names = overrides.resolve(parsed.config, parsed.words)
    for name in names:
        for note in overrides.check_study(parsed.config, name, overrides.COMMAND_LINE).notes:
            say(f"{name}: {note}", file=sys.stderr)
    return names
