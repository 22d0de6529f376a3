"""Command line of Fedloom: ``fedloom COMMAND``; ``python -m fl COMMAND`` is the same program."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl.base import plugins
from fl.base.errors import EXIT_LEFT, FedloomError, Location, unknown_name
from fl.base.files import check_writable
from fl.base.specs import ComponentSpec
from fl.cli import doctor, new_files, run_command, store_commands
from fl.cli.commands import COMMANDS, DAILY, LOOK_UP, SNAKEMAKE, Commands, loading, say
from fl.cli.store_commands import readable
from fl.plan import config
from fl.store.run_record import run_of
from fl.store.store import Store
from fl.workflow import selection

if TYPE_CHECKING:
    from fl.plan.bundle import Bundle
    from fl.plan.study_plan import StudyPlan
    from fl.runner.team import Team

KIND_BY_COMMAND = {
    "methods": "method",
    "terms": "term",
    "alterations": "alteration",
    "filters": "upload filter",
    "aggregations": "aggregation",
    "datasets": "data set",
    "models": "model",
    "partitions": "partition scheme",
    "analyses": "analysis",
}
"""Kind of component by the command that lists it."""

DISK_ERRORS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT),
    *(errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
)
"""Error numbers of a disk that refuses a path; no fault of the program."""

VERBOSE_LOGGERS = ("torch", "fontTools")
"""Packages that log statistics of a compiler or of fonts, which users do not need."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status.

    An error that the user can correct is one message on stderr.

    Args:
        arguments: Words of the command line; None: those of this process.
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    for name in VERBOSE_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    words, snakemake = run_command.split(sys.argv[1:] if arguments is None else arguments)
    parsed = _parser().parse_args(words, argparse.Namespace(snakemake=snakemake))
    try:
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


class _Version(argparse.Action):
    """Option that prints the version and ends; git runs only then."""

    def __call__(self, *_: Any) -> None:
        from fl.runner import environment

        print(f"fedloom {environment.version()}")
        raise SystemExit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedloom",
        usage="fedloom [--version] COMMAND ...",
        description="Compare federated learning methods: plan studies, follow them, show results.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = Commands(parser)
    _add_daily_commands(commands)
    _add_lookup_commands(commands)
    new_files.add(commands)
    doctor.add(commands)
    store_commands.add(commands)
    _add_snakemake_commands(commands)
    for add_commands in COMMANDS.hooks():
        add_commands(commands)
    parser.epilog = "\n".join(commands.help_lines())
    return parser


def _add_daily_commands(commands: Commands) -> None:
    sub = commands.add(
        *(DAILY, "plan", _plan),
        "show the planned runs, which of them exist, and how long the rest will take",
    )
    sub.add_argument(
        "studies", nargs="*", help="studies, also as a,b (default: those in config.yaml)"
    )
    sub.add_argument("--runs", action="store_true", help="list every run")
    sub.add_argument(
        "--write", action="store_true", help="write results/plan, as Snakemake does too"
    )
    selection.add_option(sub)
    run_command.add(commands, _show)
    sub = commands.add(
        *(DAILY, "status", _status),
        "show the progress of planned runs: done, running, failed, time left",
    )
    sub.add_argument("studies", nargs="*", help="studies of the plan (default: all of it)")
    for name, run, help in (
        ("show", _show, "print the result table of a study from stored runs"),
        ("report", _report, "write tables and report of a study from stored runs"),
    ):
        sub = commands.add(DAILY, name, run, help)
        sub.add_argument("study")
        sub.add_argument(
            "--planned",
            action="store_true",
            help="use the plan that Snakemake wrote, not the config",
        )
        if name == "show":
            sub.add_argument(
                "--table", help="print one table of its report as Markdown, e.g. paired"
            )
            selection.add_option(sub)
    sub = commands.add(
        *(DAILY, "explain", _explain),
        "show a run's settings, and its differences from the nearest run",
    )
    sub.add_argument(
        "run_prefix",
        metavar="RUN",
        type=run_of,
        help="a run's id, its first characters, or its folder",
    )
    sub.add_argument(
        "studies", nargs="*", help="studies that plan the run (default: those in config.yaml)"
    )


def _add_lookup_commands(commands: Commands) -> None:
    for name, kind in KIND_BY_COMMAND.items():
        plural = "analyses" if kind == "analysis" else f"{kind}s"
        sub = commands.add(LOOK_UP, name, _list, f"list {plural}; with NAME, its keys")
        sub.add_argument(
            *("name",),
            metavar="NAME",
            nargs="?",
            help="show its keys: meaning, allowed values, default",
        )
        sub.set_defaults(kind=kind, family=None)
        if kind == "method":
            sub.add_argument("--family", help="list only methods of a family: 'personal layers'")
    sub = commands.add(
        *(LOOK_UP, "studies", _studies),
        "list all studies: paper, data sets, methods, runs, title",
    )
    sub.add_argument("paper", nargs="?", default="", help="only studies of this paper")
    sub.add_argument(
        "--stored",
        action="store_true",
        help="plan them: stored runs, time, published cells (up to half a minute)",
    )
    sub = commands.add(
        LOOK_UP, "tracks", _tracks, "print the published comparison of all methods as Markdown"
    )
    sub.add_argument(
        "track", nargs="?", help="print the ranking of one track (default: all tracks)"
    )
    kinds = sub.add_mutually_exclusive_group()
    kinds.add_argument("--long", action="store_true", help="a row for each method of each track")
    kinds.add_argument(
        "--budgets", action="store_true", help="the best methods within multiples of a cost"
    )


def _add_snakemake_commands(commands: Commands) -> None:
    for name, run, help in (
        ("download", _download, "download the raw files of a planned data set"),
        ("prepare", _prepare, "write the arrays of a planned data set"),
        ("partition", _partition, "write a planned partition: the client of each sample"),
    ):
        sub = commands.add(SNAKEMAKE, name, run, help)
        sub.add_argument("name", help="its name or id in results/plan")
    sub = commands.add(
        SNAKEMAKE, "train", _train, "train the runs of bundles that are not in the store"
    )
    sub.add_argument(
        "specs", metavar="SPEC", nargs="+", type=Path, help="results/plan/bundles/<bundle>.json"
    )
    sub.add_argument("--store", type=Path, help="folder of runs (default: the config's)")
    sub.add_argument("--log", type=Path, help="its log file; every attempt keeps a copy")
    for name, run, help in (
        ("analyse", _analyse, "write tables and figures of a planned analysis"),
        ("tables", _tables, "write the tables of a study, and its metrics and plots for DVC"),
    ):
        sub = commands.add(SNAKEMAKE, name, run, help)
        sub.add_argument("name", help="its name or id in results/plan")


def _plan(parsed: argparse.Namespace) -> None:
    from fl.cli import summary
    from fl.plan import plan

    if parsed.write:
        current_plan, _ = plan.make_and_write(parsed.config, parsed.studies)
    else:
        current_plan = plan.read_or_make(parsed.config, config.split_names(parsed.studies))
    if parsed.only:
        current_plan = selection.select(current_plan, selection.parse(parsed.only))
    plan.supply(current_plan.members, current_plan.settings)
    for line in summary.lines(current_plan, readable(current_plan.settings.store), parsed.runs):
        say(line)


def _train(parsed: argparse.Namespace) -> int:
    with loading():
        from fl.plan import bundle
        from fl.runner import job_processes
        from fl.workflow import submission

    bundles = [bundle.read(path) for path in parsed.specs]
    store = Store(parsed.store or Path(config.read_settings(parsed.config).store))
    if job_processes.is_team_member():
        with loading():
            from fl.runner import team
        return team.run(bundles, store, partial(_train_missing, bundles, store, parsed.log))
    incomplete = [planned for planned in bundles if bundle.missing_members(planned, store)]
    if not incomplete:
        for planned in bundles:
            logging.info("%s: all %d runs exist already", planned.title, len(planned.runs))
        return 0
    check_writable(store.root)
    missing = [member.run for planned in incomplete for member in planned.runs]
    if error := submission.repeated_error_in_session(store.root, missing):
        say(f"failed: not tried again: two attempts ended with {error}", file=sys.stderr)
        return 1
    log = _copy_of_log(parsed.log) if parsed.log else None
    processes = max(planned.execution.processes for planned in incomplete)
    if processes > 1:
        words = ["-P", "-m", "fl", "train", *map(str, parsed.specs), "--store", str(store.root)]
        return job_processes.launch(processes, [*words, *(["--log", str(log)] if log else [])])
    return _train_missing(bundles, store, log)


def _copy_of_log(log: Path) -> Path:
    """Return a second name of a log file, which stays after the next attempt removes the first."""
    copy = log.with_name(f"{log.stem}.{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}{log.suffix}")
    try:
        copy.hardlink_to(log)
    except OSError:  # The file system has no hard links.
        return log
    return copy


def _train_missing(
    bundles: Sequence[Bundle], store: Store, log: Path | None, team: Team | None = None
) -> int:
    """Train missing runs and print failures; return the exit status."""
    with loading():
        from fl.plan.bundle import missing_members, training_order
        from fl.runner import slurm
        from fl.runner.job import train_bundle  # imports torch, which takes seconds
        from fl.runner.job_processes import Interruption
        from fl.runner.runs import describe_failures

    def count_missing() -> int:
        return sum(len(missing_members(bundle, store)) for bundle in bundles)

    missing_at_start = count_missing()
    try:
        failed = [
            failure
            for bundle in training_order(bundles, store)
            for failure in train_bundle(bundle, store, team, str(log or ""))
        ]
    except Interruption as error:
        say(f"stopped: {error}", file=sys.stderr)
        # Without progress the job is not queued again, as it would be for ever.
        if (error.has_finished_round or count_missing() < missing_at_start) and slurm.requeue():
            say("the job is in Slurm's queue again", file=sys.stderr)
        return EXIT_LEFT
    for line in describe_failures(failed):
        say(f"failed: {line}", file=sys.stderr)
    return 1 if failed else 0


def _studies(parsed: argparse.Namespace) -> None:
    with loading():
        from fl.cli import studies

    store = readable(config.read_settings(parsed.config).store)
    overviews = studies.overviews(parsed.config, parsed.paper, parsed.stored)
    for line in studies.lines(overviews, store) if parsed.stored else studies.outlines(overviews):
        say(line)


def _status(parsed: argparse.Namespace) -> None:
    from fl.workflow import status
    from fl.workflow.estimate import Rates

    settings = config.read_settings(parsed.config)
    store = readable(settings.store)
    results = Path(settings.results)
    names = config.split_names(parsed.studies)
    statuses = status.run_statuses(status.bundles(results, names), store, results)
    say(f"plan of {', '.join(names or status.studies(results))}")
    for line in (*status.lines(statuses, Rates(store)), *status.report_lines(results, names)):
        say(line)


def _list(parsed: argparse.Namespace) -> None:
    if (parsed.config / "config.yaml").exists():
        config.read_settings(parsed.config)  # for its plugins
    from fl.cli import catalogue

    lines = catalogue.details(parsed.kind, parsed.name) if parsed.name else None
    for line in lines or catalogue.listing(parsed.kind, parsed.family):
        say(line)


def _explain(parsed: argparse.Namespace) -> None:
    from fl.cli.explain import explain, find_planned_members

    settings = config.read_settings(parsed.config)
    store, remarks = readable(settings.store), list[str]()
    planned = find_planned_members(settings.results, parsed.run_prefix)
    if not any(run.startswith(parsed.run_prefix) for run in {*planned, *store.runs()}):
        from fl.cli import studies

        names = config.split_names(parsed.studies) or settings.studies
        required = studies.find_required_runs(parsed.config, names)
        planned = required.members
        remarks = required.remarks
    for line in explain(parsed.run_prefix, planned, store, remarks):
        say(line)


def _tables(parsed: argparse.Namespace) -> None:
    from fl.plan import plan_files
    from fl.report import result_files

    settings = config.read_settings(parsed.config)
    results = Path(settings.results)
    config.check_name(parsed.name, Location("the command line"))
    study = plan_files.read_study(settings.results, parsed.name)
    result_files.write(study, Path(settings.store), results)


def _show(parsed: argparse.Namespace) -> None:
    from fl.report import partitions, result_files, result_lines, tables
    from fl.report.facts import Facts, read_partitions

    settings, study = _study_plan(parsed)
    if parsed.only:
        study = selection.parse(parsed.only).study(study)
    if parsed.table:
        from fl import report

        results, store = Path(settings.results), readable(settings.store).root
        for line in report.table(parsed.study, parsed.table, results, store, study).splitlines():
            say(line)
        return
    rows, runs = tables.collect(study, readable(settings.store).root)
    partition_by_id = read_partitions(Path(settings.results), runs, study.titles)
    for line in result_lines.results(Facts(study, rows, runs, partition_by_id)):
        say(line)
    for note in partitions.notes(Path(settings.results), study):
        say(note)
    page = result_files.page(Path(settings.results), parsed.study)
    problem = result_files.page_problem(Path(settings.results), parsed.study, study.hash)
    mark = f" ({problem}; `snakemake` makes it again)" if problem else ""
    say(
        f"report: {page}{mark}"
        if page.exists()
        else f"no report yet. Try: fedloom report {page.stem}"
    )


def _tracks(parsed: argparse.Namespace) -> None:
    from fl.report import page, track_page, tracks

    folder = tracks.folder_of(parsed.config)
    table = tracks.read_published(folder)
    names = [name.removeprefix(tracks.PREFIX) for name in tracks.studies(folder)]
    names = list(dict.fromkeys([*table["track"], *names]))
    if parsed.track and parsed.track not in names:
        raise unknown_name(Location("the command line"), "track", parsed.track, names)
    if parsed.track and parsed.track not in set(table["track"]):
        say("There are no published results of this track.")
        return
    if parsed.budgets:
        view = track_page.budgets(table[table["track"] == parsed.track] if parsed.track else table)
    else:
        tests = tracks.compare_with_baselines(table)
        if parsed.track:
            view = track_page.ranking(table, tests, parsed.track)
        else:
            view = (track_page.long_table if parsed.long else track_page.overview)(table, tests)
    for line in page.to_markdown(view).splitlines():
        say(line)


def _report(parsed: argparse.Namespace) -> None:
    from fl import report
    from fl.cli import summary

    settings, study = _study_plan(parsed)
    results, store = Path(settings.results), Path(settings.store)
    say(summary.count_stored(study, readable(store)))
    for path in report.build(parsed.study, results, store, study):
        say(path)


def _study_plan(parsed: argparse.Namespace) -> tuple[config.Settings, StudyPlan]:
    """Return the settings and a study's plan by the config, or the plan that Snakemake wrote."""
    settings = config.read_settings(parsed.config)
    if parsed.planned:
        from fl.plan import plan_files

        config.check_name(parsed.study, Location("the command line"))
        return settings, plan_files.read_study(settings.results, parsed.study)
    from fl.plan import plan

    return settings, plan.study_plan(parsed.config, parsed.study)


def _download(parsed: argparse.Namespace) -> None:
    from fl.data import preparation
    from fl.plan import plan_files

    settings = config.read_settings(parsed.config)
    spec = plan_files.read_dataset(settings.results, parsed.name)
    preparation.download_files(spec, Path(settings.data), _supply(parsed, settings, spec))


def _prepare(parsed: argparse.Namespace) -> None:
    from fl.data import preparation
    from fl.plan import plan_files

    settings = config.read_settings(parsed.config)
    spec = plan_files.read_dataset(settings.results, parsed.name)
    preparation.prepare_dataset(spec, Path(settings.data), _supply(parsed, settings, spec))


def _partition(parsed: argparse.Namespace) -> None:
    from fl.data import partitioning
    from fl.plan import plan_files

    settings = config.read_settings(parsed.config)
    planned = plan_files.read_partition(settings.results, parsed.name)
    supply = _supply(parsed, settings, planned.spec)
    root, results = Path(settings.data), Path(settings.results)
    partitioning.make_partition(planned.scheme, planned.spec, root, results, supply)


def _analyse(parsed: argparse.Namespace) -> None:
    from fl.plan import plan_files
    from fl.report import analysis_results

    settings = config.read_settings(parsed.config)
    summary = plan_files.read_summary(settings.results)
    names = summary.analyses if summary else {}
    if names and parsed.name not in names:
        raise unknown_name(Location("the command line"), "analysis of the plan", parsed.name, names)
    planned = plan_files.read_analysis(settings.results, parsed.name)
    say(analysis_results.write_analysis(planned, Path(settings.results), Path(settings.store)))


def _supply(parsed: argparse.Namespace, settings: config.Settings, spec: ComponentSpec) -> Any:
    from fl.data import preparation
    from fl.data.download import LOCK_FILE as LOCK

    return preparation.source_policy(spec, settings.sources, parsed.config / LOCK)
