"""Command line of Fedloom: ``fedloom COMMAND``; ``python -m fl COMMAND`` is the same program.

Only the module of the command that is asked for is imported.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fl.base import arithmetic, plugins
from fl.base.errors import FedloomError, Location, unknown_name
from fl.cli.commands import say


class Command(NamedTuple):
    """A command of the program.

    Attributes:
        name: Its name on the command line.
        module: Module with its function ``add(parser, name)``, which adds the options to the
            command's parser, and sets ``run``: the function that takes what was parsed, and returns
            the exit status (None is 0).
        help: What it does, an imperative without a period.
    """

    name: str
    module: str
    help: str


COMMANDS_BY_GROUP = {
    "Every day": (
        Command(
            *("plan", "fl.cli.summary"),
            "show the planned runs, which of them exist, and how long the rest will take",
        ),
        Command(
            "run", "fl.cli.run_command", "train studies with Snakemake, and show their results"
        ),
        Command(
            *("search", "fl.cli.search"),
            "search hyper-parameters of a study with Optuna, and train what is chosen",
        ),
        Command(
            *("status", "fl.cli.status"),
            "show the progress of planned runs: done, running, failed, time left",
        ),
        Command(
            *("watch", "fl.cli.watch"),
            "show runs while they train: rounds, curves, what failed, time left",
        ),
        Command("show", "fl.cli.results", "print the result table of a study from stored runs"),
        Command("report", "fl.cli.results", "write tables and report of a study from stored runs"),
        Command(
            *("explain", "fl.cli.explain"),
            "show a run's settings, and its differences from the nearest run",
        ),
    ),
    "Look things up": (
        Command("methods", "fl.cli.catalogue", "list methods; with NAME, its keys"),
        Command("terms", "fl.cli.catalogue", "list terms; with NAME, its keys"),
        Command("alterations", "fl.cli.catalogue", "list alterations; with NAME, its keys"),
        Command("filters", "fl.cli.catalogue", "list upload filters; with NAME, its keys"),
        Command("aggregations", "fl.cli.catalogue", "list aggregations; with NAME, its keys"),
        Command("devices", "fl.cli.catalogue", "list devices of clients; with NAME, its keys"),
        Command(
            "selections", "fl.cli.catalogue", "list selections of clients; with NAME, its keys"
        ),
        Command("servers", "fl.cli.catalogue", "list asynchronous servers; with NAME, its keys"),
        Command("datasets", "fl.cli.catalogue", "list data sets; with NAME, its keys"),
        Command("models", "fl.cli.catalogue", "list models; with NAME, its keys"),
        Command("partitions", "fl.cli.catalogue", "list partition schemes; with NAME, its keys"),
        Command("analyses", "fl.cli.catalogue", "list analyses; with NAME, its keys"),
        Command(
            *("studies", "fl.cli.studies"),
            "list all studies: paper, data sets, methods, runs, title",
        ),
        Command(
            *("tracks", "fl.cli.tracks"),
            "print what is claimed of all methods on the tracks, as Markdown",
        ),
        Command(
            *("doctor", "fl.cli.doctor"),
            "show what is installed, what this machine has, and what is missing for what",
        ),
    ),
    "Your own": (
        Command("init", "fl.cli.new_files", "write a workspace: a folder to train studies in"),
        Command(
            *("new", "fl.cli.new_files"),
            "write a file for your own method, data set, ..., which already runs",
        ),
        Command(
            *("compare", "fl.cli.compare"),
            "train a method on the tracks, and set it beside all whose results are kept",
        ),
    ),
    "Keep and publish": (
        Command(
            *("predict", "fl.cli.predict"),
            "predict new samples by the model of a stored run, or by a saved model",
        ),
        Command(
            *("store", "fl.cli.store_commands"),
            "list, verify, clean up, export or import stored runs",
        ),
        Command(
            *("recompute", "fl.cli.recompute"),
            "train a stored run again and compare its metrics",
        ),
        Command(
            *("export", "fl.cli.export"),
            "write a study with code, data sources and results as an RO-Crate",
        ),
    ),
    "Called by Snakemake": (
        Command("download", "fl.cli.data", "download the raw files of a planned data set"),
        Command("prepare", "fl.cli.data", "write the arrays of a planned data set"),
        Command(
            *("partition", "fl.cli.data"), "write a planned partition: the client of each sample"
        ),
        Command("train", "fl.cli.train", "train the runs of bundles that are not in the store"),
        Command("analyse", "fl.cli.results", "write tables and figures of a planned analysis"),
        Command(
            *("tables", "fl.cli.results"),
            "write the tables of a study, and its metrics and plots for DVC",
        ),
    ),
}
"""The commands by their group in ``--help``, in its order."""

DISK_ERRORS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT),
    *(errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
)
"""Error numbers of a disk that refuses a path; no fault of the program."""

USAGE_ERROR = 2
"""Exit status of a wrong command, as that of argparse."""

VERBOSE_LOGGERS = ("torch", "fontTools")
"""Packages that log statistics of a compiler or of fonts, which users do not need."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status.

    An error that the user can correct is one message on stderr.

    Args:
        arguments: Words of the command line; None: those of this process.
    """
    arithmetic.choose(is_program=arguments is None)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    for name in VERBOSE_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    words, snakemake = split(sys.argv[1:] if arguments is None else arguments)
    names = [command.name for commands in COMMANDS_BY_GROUP.values() for command in commands]
    if words and not words[0].startswith("-") and words[0] not in names:
        unknown = unknown_name(Location("the command line"), "command", words[0], names)
        say(f"error: {unknown}", file=sys.stderr)
        return USAGE_ERROR
    program = parser(words[0] if words else "")
    parsed, others = program.parse_known_args(words, argparse.Namespace(snakemake=snakemake))
    if others and (not hasattr(parsed, "words") or any(w.startswith("-") for w in others)):
        hint = _hint(words, others) if hasattr(parsed, "words") else ""
        program.error(f"unrecognized arguments: {' '.join(others)}{hint}")
    try:
        if others:  # Words behind an option.
            parsed.words += others
        return int(parsed.run(parsed) or 0)
    except FedloomError as error:
        for line in f"error: {error}".split("\n"):
            say(line, file=sys.stderr)
    except SystemExit as error:  # Only a plugin raises it here.
        problem = f"{plugins.describe(error)}: a plugin ended the program"
        say(f"error: {problem}. Try: raise an exception instead", file=sys.stderr)
    except BrokenPipeError:
        sys.stderr.close()
    except OSError as error:
        if error.errno not in DISK_ERRORS or error.filename is None:
            raise
        say(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
    return 1


def _hint(words: Sequence[str], others: Sequence[str]) -> str:
    """Return how to set a key that is written as an option, ``--lr 0.1``; empty for another one."""
    from fl.plan import overrides

    option = next(word for word in others if word.startswith("-"))
    key, _, value = option.lstrip("-").partition("=")
    if not overrides.is_key(key.partition(".")[0]):
        return ""
    value = value or next(iter(words[words.index(option) + 1 :]), "VALUE")
    return f". Try: {key}={value}, to set a key of the study"


def parser(command: str) -> argparse.ArgumentParser:
    """Return the program's parser.

    Args:
        command: Name of the command whose options it has; the other commands have only their names.
    """
    program = argparse.ArgumentParser(
        prog="fedloom",
        usage="fedloom [--version] COMMAND ...",
        description="Compare federated learning methods: plan studies, follow them, show results.",
        epilog="\n".join(_help_lines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    program.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    # The epilog lists the commands by group, so argparse's own list is left out.
    parsers = program.add_subparsers(
        prog=program.prog, metavar="COMMAND", required=True, help=argparse.SUPPRESS
    )
    for commands in COMMANDS_BY_GROUP.values():
        for name, module, help in commands:
            description = f"{help[0].upper()}{help[1:]}."
            sub = parsers.add_parser(name, description=description)
            if name == command:
                importlib.import_module(module).add(sub, name)
    return program


def _help_lines() -> Iterator[str]:
    """Return the lines of ``--help`` about all commands."""
    for group, commands in COMMANDS_BY_GROUP.items():
        yield f"{group}:"
        yield from (f"  {name:12}  {help}" for name, _, help in commands)
        yield ""
    yield "fedloom COMMAND --help explains a command and its options."


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of the command line, and those behind ``--``, which are for Snakemake."""
    if words[:1] not in (["run"], ["search"]) or "--" not in words:
        return [*words], []
    index = words.index("--")
    return [*words[:index]], [*words[index + 1 :]]


class _Version(argparse.Action):
    """Option that prints the version and ends; git runs only then."""

    def __call__(self, *_: Any) -> None:
        from fl.runner import environment

        print(f"fedloom {environment.version()}")
        raise SystemExit(0)
