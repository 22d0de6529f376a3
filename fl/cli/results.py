"""Results of a study from stored runs: ``show``, ``report``, ``tables`` and ``analyse``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fl import report
from fl.base.errors import FedloomError, Location, unknown_name
from fl.cli.commands import add_config_option, say
from fl.cli.stores import readable
from fl.plan import config, plan, plan_files, result_paths
from fl.plan.study_plan import StudyPlan
from fl.report import analysis_results, partitions, result_files, result_lines, tables
from fl.report.facts import Facts, read_partitions
from fl.store.store import Store
from fl.workflow import selection


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command ``name``."""
    add_config_option(parser)
    if name in ("tables", "analyse"):
        parser.add_argument("name", help="its name or id in results/plan")
        parser.set_defaults(run=_tables if name == "tables" else _analyse)
        return
    parser.add_argument("study", nargs="?", help="its name (default: the only one of config.yaml)")
    parser.add_argument(
        "--planned", action="store_true", help="use the plan that Snakemake wrote, not the config"
    )
    if name == "report":
        parser.set_defaults(run=_report)
        return
    parser.add_argument("--table", help="print one table of its report as Markdown, e.g. paired")
    selection.add_option(parser)
    parser.set_defaults(run=show)


def show(parsed: argparse.Namespace) -> None:
    """Print the result table of ``parsed.study``."""
    settings, study = _study_plan(parsed)
    if parsed.only:
        study = selection.parse(parsed.only).study(study)
    if parsed.table:
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
    page = result_paths.page(Path(settings.results), parsed.study)
    problem = result_paths.page_problem(Path(settings.results), parsed.study, study.hash)
    mark = f" ({problem}; `snakemake` makes it again)" if problem else ""
    say(
        f"report: {page}{mark}"
        if page.exists()
        else f"no report yet. Try: fedloom report {page.stem}"
    )


def _report(parsed: argparse.Namespace) -> None:
    settings, study = _study_plan(parsed)
    results, store = Path(settings.results), Path(settings.store)
    say(_count_stored(study, readable(store)))
    for path in report.build(parsed.study, results, store, study):
        say(path)


def _count_stored(study: StudyPlan, store: Store) -> str:
    """Return the number of a study's runs in the store, as a line."""
    runs = {run.run for run in study.runs}
    return f"{sum(map(store.has, runs))} of {len(runs)} runs stored"


def _study_plan(parsed: argparse.Namespace) -> tuple[config.Settings, StudyPlan]:
    """Return the settings and a study's plan by the config, or the plan that Snakemake wrote."""
    settings = config.read_settings(parsed.config)
    if parsed.study is None:
        if len(settings.studies) != 1:
            listed = ", ".join(settings.studies)
            raise FedloomError("the command line: the name of a study is missing", listed)
        [parsed.study] = settings.studies
    if parsed.planned:
        config.check_name(parsed.study, Location("the command line"))
        return settings, plan_files.read_study(settings.results, parsed.study)
    try:
        planned = plan.read(parsed.config, [parsed.study])
    except FedloomError:
        config.check_name(parsed.study, Location("the command line"))
        if plan_files.file_of(settings.results, "studies", parsed.study).exists():
            say("--planned goes by the plan that is stored already, without the config", sys.stderr)
        raise
    plan.supply(planned.runs, settings)
    return settings, planned.studies[parsed.study]


def _tables(parsed: argparse.Namespace) -> None:
    settings = config.read_settings(parsed.config)
    results = Path(settings.results)
    config.check_name(parsed.name, Location("the command line"))
    study = plan_files.read_study(settings.results, parsed.name)
    result_files.write(study, Path(settings.store), results)


def _analyse(parsed: argparse.Namespace) -> None:
    settings = config.read_settings(parsed.config)
    index = plan_files.read_index(settings.results)
    names = index.analyses if index else {}
    if names and parsed.name not in names:
        raise unknown_name(Location("the command line"), "analysis of the plan", parsed.name, names)
    results, store = Path(settings.results), Path(settings.store)
    study, planned = plan_files.read_analysis(results, parsed.name)
    say(analysis_results.write_analysis(planned, study, results, store))
