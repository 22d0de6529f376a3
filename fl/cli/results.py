"""Results of a study from stored runs: ``show``, ``report``, ``tables`` and ``analyse``."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from fl import report
from fl.base.errors import FedloomError, Location, unknown_name
from fl.base.units import quantity
from fl.cli.commands import add_config_option, add_words, say
from fl.cli.stores import readable
from fl.plan import config, overrides, plan, plan_files, result_paths
from fl.plan.study_plan import StudyPlan
from fl.report import analysis_results, partitions, result_files, result_lines, tables
from fl.report.facts import Facts, read_partitions
from fl.store.store import Store
from fl.workflow import selection, status


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command ``name``."""
    add_config_option(parser)
    if name in ("tables", "analyse"):
        parser.add_argument("name", help="its name or id in results/plan")
        parser.set_defaults(run=_tables if name == "tables" else _analyse)
        return
    add_words(parser, "one study (default: the only one of config.yaml)")
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
    """Print the result table of the study that ``parsed.words`` name."""
    settings, name, study = _study_plan(parsed)
    if parsed.only:
        count = len(study.runs)
        study = selection.parse(parsed.only).study(study)
        say(f"{len(study.runs)} of {quantity(count, 'run')}, by --only {' '.join(parsed.only)}")
    if parsed.table:
        results, store = Path(settings.results), readable(settings.store).root
        for line in report.table(name, parsed.table, results, store, study).splitlines():
            say(line)
        return
    rows, runs = tables.collect(study, readable(settings.store).root)
    partition_by_id = read_partitions(Path(settings.results), runs, study.titles)
    for line in result_lines.results(Facts(study, rows, runs, partition_by_id)):
        say(line)
    for note in partitions.notes(Path(settings.results), study):
        say(note)
    page = result_paths.page(Path(settings.results), name)
    problem = result_paths.page_problem(Path(settings.results), name, study.hash)
    mark = f" ({problem}; `snakemake` makes it again)" if problem else ""
    say(
        f"report: {page}{mark}"
        if page.exists()
        else f"no report yet. Try: fedloom report {shlex.join(overrides.as_words(name))}"
    )


def _report(parsed: argparse.Namespace) -> None:
    settings, name, study = _study_plan(parsed)
    results, store = Path(settings.results), Path(settings.store)
    say(_count_stored(study, readable(store)))
    for path in report.build(name, results, store, study):
        say(path)


def _count_stored(study: StudyPlan, store: Store) -> str:
    """Return the number of a study's runs in the store, as a line."""
    runs = {run.run for run in study.runs}
    return f"{sum(map(store.has, runs))} of {len(runs)} runs stored"


def _study_plan(parsed: argparse.Namespace) -> tuple[config.Settings, str, StudyPlan]:
    """Return settings, name and plan of a study by the config, or as Snakemake wrote the plan."""
    settings = plan_files.read_settings(parsed.config)
    if len(parsed.words) == 1 and (parsed.planned or "=" not in parsed.words[0]):
        [name] = parsed.words  # Also one with a hash of overrides, of a written plan.
    else:
        studies = settings.studies or status.stored_studies(Path(settings.results))
        names = overrides.resolve(parsed.config, parsed.words) or studies
        if len(names) != 1:
            problem = f"{len(names) if parsed.words else 'no'} studies are named, and not one"
            listed = ", ".join(studies)
            raise FedloomError(f"{overrides.COMMAND_LINE}: {problem}", listed)
        [name] = names
    overrides.check_name(name)
    if parsed.planned or plan_files.is_stored_alone(parsed.config, settings.results, name):
        return settings, name, plan_files.read_study(settings.results, name)
    if not (parsed.config / "config.yaml").exists():
        studies = status.stored_studies(Path(settings.results))
        raise unknown_name(overrides.COMMAND_LINE, "study", name, studies)
    try:
        planned = plan.read(parsed.config, [name])
    except FedloomError:
        if plan_files.file_of(settings.results, "studies", name).exists():
            say("--planned goes by the plan that is stored already, without the config", sys.stderr)
        raise
    plan.supply(planned.runs, settings)
    return settings, name, planned.studies[name]


def _tables(parsed: argparse.Namespace) -> None:
    settings = config.read_settings(parsed.config)
    results = Path(settings.results)
    overrides.check_name(parsed.name)
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
