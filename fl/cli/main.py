"""The command line: ``python -m fl COMMAND``. ``--help`` explains every command."""

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

from fl.base import error_text
from fl.base.errors import EXIT_LEFT, FedloomError, Location, unknown_name
from fl.base.files import check_writable
from fl.cli import scaffold, store_commands
from fl.cli.loading import loading
from fl.cli.printing import say
from fl.cli.store_commands import readable
from fl.plan import config
from fl.store.store import Store

if TYPE_CHECKING:
    from fl.plan.bundle import Bundle
    from fl.plan.plan_files import ItemKind
    from fl.runner.team import Team

KINDS = {
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
"""The commands that list what there is, and the kinds of things that they list."""

REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT),
    *(errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
)
"""What a disk refuses wherever a path is first looked at; no fault of the program."""

LICENCE = "https://spdx.org/licenses/Apache-2.0"
"""Of what `export` writes, where nothing else is said: Fedloom's own."""

CHATTY = ("torch", "fontTools")
"""Packages that log what nobody asked for: a compiler's statistics, how a figure's font is cut."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status.

    An error that the user can mend is one message on stderr.
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    parsed = _parser().parse_args(arguments)
    try:
        return int(parsed.run(parsed) or 0)
    except FedloomError as error:
        for line in f"error: {error}".split("\n"):
            say(line, file=sys.stderr)
    except SystemExit as error:  # Of a plugin: nothing of ours ends the process by it.
        problem = (
            f"{error_text.describe(error)}: a plugin ends the program. Allowed: to raise an error"
        )
        say(f"error: {problem}", file=sys.stderr)
    except BrokenPipeError:
        sys.stderr.close()
    except OSError as error:
        if error.errno not in REFUSED or error.filename is None:
            raise
        say(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
    return 1


class _Version(argparse.Action):
    """Prints the version and ends; git is asked only then."""

    def __call__(self, *_: Any) -> None:
        from fl.runner import environment

        print(f"fedloom {environment.version()}")
        raise SystemExit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fl", description=__doc__)
    parser.add_argument("--version", action=_Version, nargs=0, help="this code's version")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Any, help: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help)
        sub.set_defaults(run=run)
        sub.add_argument(
            "--config", type=Path, default=Path("config"), help="config folder (default: config)"
        )
        return sub

    sub = command("plan", _plan, "what a config means: runs, what is there, what the rest costs")
    sub.add_argument(
        "studies", nargs="*", help="studies, also as a,b (default: those of config.yaml)"
    )
    sub.add_argument("--runs", action="store_true", help="list every run")
    sub.add_argument("--write", action="store_true", help="write results/plan (Snakemake does)")

    sub = command("train", _train, "train the runs of bundles that the store lacks")
    sub.add_argument(
        "specs", metavar="SPEC", nargs="+", type=Path, help="results/plan/bundles/<bundle>.json"
    )
    sub.add_argument("--store", type=Path, help="folder of runs (default: the config's)")
    sub.add_argument("--log", type=Path, help="the file that it prints to, kept for each attempt")

    sub = command("studies", _studies, "all studies: of which paper, how many runs, what is there")
    sub.add_argument("paper", nargs="?", default="", help="only those of published/PAPER.csv")

    command("status", _status, "how far the planned runs are: done, running, failed, time left")

    for name, kind in KINDS.items():
        kinds = "analyses" if kind == "analysis" else f"{kind}s"
        sub = command(name, _list, f"what {kinds} there are; of one of them, its keys")
        sub.add_argument("name", nargs="?", help="its keys, their defaults, ranges and meaning")
        sub.set_defaults(kind=kind)

    sub = command("new", _new, "a file of your own that runs, to be filled in")
    sub.add_argument("kind", choices=sorted(scaffold.KINDS))
    sub.add_argument("name", help="as configs will say it: letters, digits and dashes")
    sub.add_argument(
        "--in", dest="folder", type=Path, help="plugin folder (default: the config's first, mylab)"
    )

    sub = command("explain", _explain, "a run's spec, and what sets it apart from the nearest one")
    sub.add_argument("wanted", metavar="RUN", help="a run's id, or its beginning")
    sub.add_argument(
        "studies", nargs="*", help="whose run it is, if it is not stored (default: config.yaml's)"
    )

    sub = command("recompute", _recompute, "trains a stored run again, and compares its metrics")
    sub.add_argument("wanted", metavar="RUN", help="a run's id, or its beginning")
    sub.add_argument("--store", type=Path, help="folder of runs (default: the config's)")
    sub.add_argument("--anyway", action="store_true", help="by this code, if other code made it")

    sub = command("export", _export, "a study with all that it takes, as an RO-Crate to publish")
    sub.add_argument("study")
    sub.add_argument("--crate", type=Path, required=True, help="a new folder, or a file *.zip")
    sub.add_argument("--license", default=LICENCE, help=f"its address (default: {LICENCE})")
    sub.add_argument("--anonymous", action="store_true", help="for a blind review: names nobody")

    for name, run, help in (
        ("show", _show, "the result table of a study, from what is there"),
        ("report", _report, "tables and report of a study, from what is there"),
    ):
        sub = command(name, run, help)
        sub.add_argument("study")
        sub.add_argument(
            "--planned", action="store_true", help="as Snakemake planned it, not as config is now"
        )
        if name == "show":
            sub.add_argument("--table", help="one table of its report, in Markdown, such as paired")
    sub = command("tracks", _tracks, "the kept comparison of all methods, in Markdown")
    sub.add_argument("track", nargs="?", help="the ranking of one track (default: all at a glance)")

    for name, help in (
        ("tables", "the tables of a study, and what DVC shows of them"),
        ("download", "the raw files of a planned data set"),
        ("prepare", "the arrays of a planned data set"),
        ("partition", "a planned partition: who holds which sample"),
        ("analyse", "a planned analysis of stored runs: its table and figures"),
    ):
        sub = command(name, globals()[f"_{name}"], help)
        sub.add_argument("name", help="its name or id in results/plan")
    store_commands.add(commands)
    return parser


def _plan(parsed: argparse.Namespace) -> None:
    from fl.cli import summary
    from fl.plan import plan

    if parsed.write:
        plan_now, _ = plan.make_and_write(parsed.config, parsed.studies)
    else:
        plan_now = plan.read_or_make(parsed.config, config.split_names(parsed.studies))
    for line in summary.lines(plan_now, readable(plan_now.settings.store), parsed.runs):
        say(line)


def _train(parsed: argparse.Namespace) -> int:
    with loading():
        from fl.plan import bundle, jobs
        from fl.runner import launch

    bundles = [bundle.read(path) for path in parsed.specs]
    store = Store(parsed.store or Path(config.read_settings(parsed.config).store))
    if launch.member():
        with loading():
            from fl.runner import team
        return team.run(bundles, store, partial(_trained, bundles, store, parsed.log))
    lacking = [planned for planned in bundles if jobs.missing_members(planned, store)]
    if not lacking:
        for planned in bundles:
            logging.info("%s: all %d runs are already there", planned.title, len(planned.runs))
        return 0
    check_writable(store.root)
    log = _kept(parsed.log) if parsed.log else None
    processes = max(planned.execution.processes for planned in lacking)
    if processes > 1:
        words = ["-P", "-m", "fl", "train", *map(str, parsed.specs), "--store", str(store.root)]
        return launch.launch(processes, [*words, *(["--log", str(log)] if log else [])])
    return _trained(bundles, store, log)


def _kept(log: Path) -> Path:
    """Another name of a log, which it keeps when the next attempt has removed the first one."""
    kept = log.with_name(f"{log.stem}.{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}{log.suffix}")
    try:
        kept.hardlink_to(log)
    except OSError:  # The disk knows one name of a file.
        return log
    return kept


def _trained(
    bundles: Sequence[Bundle], store: Store, log: Path | None, team: Team | None = None
) -> int:
    """Train what is lacking, and say what failed."""
    with loading():
        from fl.plan import jobs
        from fl.runner import slurm
        from fl.runner.job import train_bundle  # imports torch, which takes seconds
        from fl.runner.leaving import Interrupted

    def lacking() -> int:
        return sum(len(jobs.missing_members(bundle, store)) for bundle in bundles)

    before = lacking()
    try:
        failed = [
            line
            for bundle in jobs.training_order(bundles, store)
            for line in train_bundle(bundle, store, team, str(log or ""))
        ]
    except Interrupted as error:
        say(f"stopped: {error}", file=sys.stderr)
        # A job that gets nowhere is not put into the queue for ever.
        if (error.rounds or lacking() < before) and slurm.requeue():
            say("Slurm has the job in its queue again", file=sys.stderr)
        return EXIT_LEFT
    for line in failed:
        say(f"failed: {line}", file=sys.stderr)
    return 1 if failed else 0


def _studies(parsed: argparse.Namespace) -> None:
    from fl.cli import studies

    store = readable(config.read_settings(parsed.config).store)
    for line in studies.lines(studies.look(parsed.config, parsed.paper), store):
        say(line)


def _status(parsed: argparse.Namespace) -> None:
    from fl.plan.estimate import Rates
    from fl.workflow import status

    settings = config.read_settings(parsed.config)
    store = readable(settings.store)
    standings = status.look(status.bundles(Path(settings.results)), store)
    for line in status.lines(standings, Rates(store)):
        say(line)


def _list(parsed: argparse.Namespace) -> None:
    if (parsed.config / "config.yaml").exists():
        config.read_settings(parsed.config)  # for its plugins
    from fl.cli import catalogue

    lines = catalogue.details(parsed.kind, parsed.name) if parsed.name else None
    for line in lines or catalogue.listing(parsed.kind):
        say(line)


def _new(parsed: argparse.Namespace) -> None:
    configured = config.read_settings(parsed.config).plugins
    folder = parsed.folder or Path(configured[0] if configured else "mylab")
    say(f"wrote {scaffold.write(parsed.kind, parsed.name, folder)}")
    if str(folder) not in configured:
        say(f"now say `plugins: [{folder}]` in {parsed.config / 'config.yaml'}")


def _explain(parsed: argparse.Namespace) -> None:
    from fl.cli.explain import explain, planned_runs

    settings = config.read_settings(parsed.config)
    store, remarks = readable(settings.store), list[str]()
    planned = planned_runs(Path(settings.results) / "plan", parsed.wanted)
    if not any(run.startswith(parsed.wanted) for run in {*planned, *store.runs()}):
        from fl.plan import required_runs

        studies = config.split_names(parsed.studies) or settings.studies
        wanted = required_runs.find(parsed.config, studies)
        planned = {run: vars(member) for run, member in wanted.members.items()}
        remarks = wanted.remarks
    for line in explain(parsed.wanted, planned, store, remarks):
        say(line)


def _recompute(parsed: argparse.Namespace) -> int:
    from fl.cli import recomputed

    settings = config.read_settings(parsed.config)
    store = readable(parsed.store or settings.store)
    run = recomputed.matching(parsed.wanted, store)
    with loading():
        from fl.data.lock import NAME as LOCK
        from fl.runner.recompute import recompute
    made = recompute(run, store, settings, parsed.config / LOCK, parsed.anyway)
    for line in recomputed.lines(made):
        say(line)
    return int(not all(difference.same for difference in made.differences))


def _export(parsed: argparse.Namespace) -> None:
    from fl.cli import crate

    for line in crate.write(
        parsed.config, parsed.study, parsed.crate, parsed.license, parsed.anonymous
    ):
        say(line)


def _tables(parsed: argparse.Namespace) -> None:
    from fl.report import result_files

    settings = config.read_settings(parsed.config)
    results = Path(settings.results)
    config.check_name(parsed.name, Location("the command line"))
    study = _planned(results, "studies", parsed.name)
    result_files.write(study, Path(settings.store), results)


def _show(parsed: argparse.Namespace) -> None:
    from fl.cli import summary
    from fl.report import tables
    from fl.report.facts import Facts

    settings, study = _asked(parsed)
    if parsed.table:
        from fl import report

        results, store = Path(settings.results), readable(settings.store).root
        for line in report.table(parsed.study, parsed.table, results, store, study).splitlines():
            say(line)
        return
    rows, runs = tables.collect(study, readable(settings.store).root)
    for line in summary.results(Facts(study, rows, runs)):
        say(line)
    page = Path(settings.results) / "report" / f"{parsed.study}.html"
    say(f"report: {page}" if page.exists() else f"no report yet: python -m fl report {page.stem}")


def _tracks(parsed: argparse.Namespace) -> None:
    from fl.report import markdown, track_page, tracks

    table = tracks.kept(parsed.config)
    known = [name.removeprefix(tracks.PREFIX) for name in tracks.studies(parsed.config)]
    known = list(dict.fromkeys([*table["track"], *known]))
    if parsed.track and parsed.track not in known:
        raise unknown_name(Location("the command line"), "track", parsed.track, known)
    if parsed.track and parsed.track not in set(table["track"]):
        say("No results of this track are kept.")
        return
    shown = track_page.ranking(table, parsed.track) if parsed.track else track_page.overview(table)
    for line in markdown.to_markdown(shown).splitlines():
        say(line)


def _report(parsed: argparse.Namespace) -> None:
    from fl import report
    from fl.cli import summary

    settings, study = _asked(parsed)
    results, store = Path(settings.results), Path(settings.store)
    say(summary.there(study, readable(store)))
    for path in report.build(parsed.study, results, store, study):
        say(path)


def _asked(parsed: argparse.Namespace) -> tuple[config.Settings, dict[str, Any]]:
    """A study for the config as it is now; for a job, as the graph planned it."""
    settings = config.read_settings(parsed.config)
    if parsed.planned:
        config.check_name(parsed.study, Location("the command line"))
        return settings, _planned(Path(settings.results), "studies", parsed.study)
    from fl.plan import plan

    return settings, plan.study_plan(parsed.config, parsed.study).to_json()


def _download(parsed: argparse.Namespace) -> None:
    from fl.data import materials

    settings = config.read_settings(parsed.config)
    spec = _planned(Path(settings.results), "datasets", parsed.name)
    materials.download(spec, Path(settings.data), _supply(parsed, settings, spec))


def _prepare(parsed: argparse.Namespace) -> None:
    from fl.data import materials

    settings = config.read_settings(parsed.config)
    spec = _planned(Path(settings.results), "datasets", parsed.name)
    materials.prepare(spec, Path(settings.data), _supply(parsed, settings, spec))


def _partition(parsed: argparse.Namespace) -> None:
    from fl.data import materials

    settings = config.read_settings(parsed.config)
    planned = _planned(Path(settings.results), "partitions", parsed.name)
    supply = _supply(parsed, settings, planned["spec"])
    root, results = Path(settings.data), Path(settings.results)
    materials.partition(planned["scheme"], planned["spec"], root, results, supply)


def _analyse(parsed: argparse.Namespace) -> None:
    from fl.plan import plan_files
    from fl.report import make_analysis

    settings = config.read_settings(parsed.config)
    results = Path(settings.results)
    summary = plan_files.read_summary(results / "plan")
    known = summary["analyses"] if summary else {}
    if known and parsed.name not in known:
        raise unknown_name(Location("the command line"), "analysis of the plan", parsed.name, known)
    made = make_analysis.make(
        _planned(results, "analyses", parsed.name), results, Path(settings.store)
    )
    say(made)


def _supply(parsed: argparse.Namespace, settings: config.Settings, spec: dict[str, Any]) -> Any:
    from fl.data import materials
    from fl.data.lock import NAME as LOCK

    return materials.supply(spec, settings.sources, parsed.config / LOCK)


def _planned(results: Path, kind: ItemKind, name: str) -> dict[str, Any]:
    from fl.plan import plan_files

    return plan_files.read_item(results / "plan", kind, name)
