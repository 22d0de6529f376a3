"""All studies of a config folder: an overview of them, and the runs that they need.

Nothing is trained, and no model is built. A study belongs to the paper whose file in `published/`
has a name with which the study's name begins, or whose cells the study lists. Its key ``shows``
names the table.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fl.base import registry
from fl.base.errors import ConfigProblems, FedloomError, Location, unknown_name
from fl.base.specs import Spec
from fl.base.units import duration, quantity
from fl.cli import catalogue
from fl.cli.commands import add_config_option, aligned, say
from fl.cli.stores import readable
from fl.plan import config, plan, plan_files, study_files
from fl.plan.bundle import Run
from fl.plan.config import Draft
from fl.store.store import Store
from fl.workflow.estimate import Rates

NO_PAPER = "no paper"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Overview:
    """Overview of one study.

    Attributes:
        name: Name of the study.
        paper: Its paper.
        shows: Tables and figures of the paper; empty if the paper has no numbers for them.
        title: Title of the study.
        datasets: Data sets.
        methods: Methods.
        runs: Number of its runs.
        published: Number of published cells that its report compares with measured values.
        was_tried: Whether its whole path has run for a round, see ``published/ran-once.txt``.
        specs: Spec by run.
        error: Reason why it cannot be planned; all other values are then empty.

    ``published`` and ``specs`` are known only of studies that were planned.
    """

    name: str
    paper: str
    shows: str
    title: str = ""
    datasets: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    runs: int = 0
    published: int = 0
    was_tried: bool = False
    specs: Mapping[str, Spec] | None = None
    error: str = ""

    @property
    def files(self) -> str:
        """Origin of the files of its data sets; of several the one that asks most of a user."""
        datasets = (registry.find("data set", name, Location(self.name)) for name in self.datasets)
        origins = map(catalogue.origin_of_files, datasets)
        return min(origins, key=catalogue.ORIGINS.index, default="")


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command ``name``."""
    add_config_option(parser)
    parser.add_argument("paper", nargs="?", default="", help="only studies of this paper")
    parser.add_argument(
        "--stored",
        action="store_true",
        help="plan them: stored runs, time, published cells (up to half a minute)",
    )
    parser.set_defaults(run=_studies)


def _studies(parsed: argparse.Namespace) -> None:
    store = readable(config.read_settings(parsed.config).store)
    studies = overviews(parsed.config, parsed.paper, parsed.stored)
    for line in lines(studies, store) if parsed.stored else outlines(studies):
        say(line)


def overviews(folder: Path, paper: str = "", planned: bool = True) -> list[Overview]:
    """Return the studies of a paper (by default of all papers), sorted by paper.

    Args:
        folder: Config folder.
        paper: Name of a file in ``published/`` without its ending, in capitals or not.
        planned: Whether studies are planned, which takes seconds.

    Raises:
        FedloomError: If the paper has no study.
    """
    stems = (path.stem for path in (folder / "published").glob("*.csv"))
    papers = sorted(stems, key=len, reverse=True)
    if planned:
        log.info("planning each study, which takes up to half a minute")
    studies = [_read(folder, name, papers) for name in all_studies(folder)]
    selected = [pair for pair in studies if paper.lower() in ("", pair[0].paper.lower())]
    if paper and not selected:
        papers_with_studies = {overview.paper for overview, _ in studies}
        raise unknown_name(Location("the command line"), "paper", paper, papers_with_studies)
    overviews = [
        overview if draft is None else _overview(overview, folder, draft, planned)
        for overview, draft in selected
    ]
    return sorted(overviews, key=lambda overview: (overview.paper == NO_PAPER, overview.paper))


def _read(folder: Path, name: str, papers: Iterable[str]) -> tuple[Overview, Draft | None]:
    """Return the name, paper and error of a study, and its draft if it has no error."""
    try:
        draft = config.read_draft(folder, name, Location(name))
        ConfigProblems(draft.errors).raise_all()
    except FedloomError as error:
        paper = next(filter(name.startswith, papers), NO_PAPER)
        return Overview(name, paper, "", error=str(error)), None
    study = draft.study
    sources = {cells.source for cells in (*study.published, study.best) if cells is not None}
    paper = next((p for p in papers if name.startswith(p) or f"{p}.csv" in sources), NO_PAPER)
    was_tried = name in _tried_studies(folder)
    return Overview(name, paper, study.shows, study.title or name, was_tried=was_tried), draft


def _overview(overview: Overview, folder: Path, draft: Draft, planned: bool) -> Overview:
    """Return the overview of a study with its data sets, methods and runs, or its error."""
    name = overview.name
    try:
        if not planned:
            return with_size(overview, folder, draft)
        study_plans = plan.make(folder, [name], checked=False)
    except FedloomError as error:
        return Overview(name, overview.paper, overview.shows, error=str(error))
    study_plan = study_plans.studies[name]
    specs = {run: planned.spec for run, planned in study_plans.runs.items()}
    return replace(
        overview,
        title=study_plan.title,
        datasets=tuple(study_plan.names["data set"]),
        methods=tuple(study_plan.names["method"]),
        runs=len(specs),
        published=len(study_plan.published),
        specs=specs,
    )


def with_size(overview: Overview, folder: Path, draft: Draft) -> Overview:
    """Return an overview with data sets, methods and number of runs, without names of runs.

    The keys of all entries are checked, but not whether they go together in a scenario.

    Raises:
        ConfigError: For what is wrong with the study, as far as it is checked.
    """
    from fl.plan import expand  # It imports torch.

    problems = ConfigProblems()
    components = expand.read_components(folder, draft, problems)
    problems.raise_all()
    combinations = [*expand.combinations(draft.study, components)]
    datasets = {c.entry.population(c.dataset, c.scheme)[0].component.name for c in combinations}
    return replace(
        overview,
        datasets=tuple(sorted(datasets)),
        methods=tuple(sorted({entry.method.name for entry in components.entries})),
        runs=len({combination.key for combination in combinations}),
    )


def _tried_studies(folder: Path) -> set[str]:
    path = folder / "published" / "ran-once.txt"
    return set(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else set()


def _tried_line(studies: Iterable[Overview]) -> Iterator[str]:
    if names := [study.name for study in studies if study.was_tried]:
        yield (
            f"Tried for one round on generated files, from download to report: {', '.join(names)}."
        )


def outlines(studies: Sequence[Overview]) -> Iterator[str]:
    """Return the lines of a table of studies that are not planned."""
    table = [("paper", "study", "shows", "data set", "files", "methods", "runs", "title")]
    for study in studies:
        if not study.error:
            counts = str(len(study.methods)), str(study.runs)
            about = study.paper, study.name, study.shows, ", ".join(study.datasets), study.files
            table.append((*about, *counts, study.title))
    yield from aligned(table)
    yield (
        f"{quantity(len(table) - 1, 'study')}. Files: by hand, as `fedloom datasets NAME` says; "
        "downloaded when a study needs them; ready without a download. With --stored: stored runs, "
        "time, and published cells, which takes up to half a minute."
    )
    yield from (*_tried_line(studies), *_errors(studies))


def _errors(studies: Iterable[Overview]) -> Iterator[str]:
    """Return a line for each study that cannot be planned."""
    return (f"{study.name} cannot be planned: {study.error}" for study in studies if study.error)


def lines(studies: Sequence[Overview], store: Store) -> Iterator[str]:
    """Return the lines of a table; stored runs and times depend on the store."""
    rates, stored = Rates(store), {*store.runs()}
    counts = ["methods", "runs", "stored", "time", "published"]
    head = ("paper", "study", "shows", "data set", *counts)
    table = list[tuple[str, ...]]([head])
    for study in studies:
        if study.error:
            continue
        specs = study.specs or {}
        seconds = rates.seconds(specs.values())
        table.append(
            (
                *(study.paper, study.name, study.shows, ", ".join(study.datasets)),
                *map(str, (len(study.methods), len(specs), len(stored & {*specs}))),
                "unknown" if seconds is None else duration(seconds),
                str(study.published),
            )
        )
    yield from aligned(table)
    yield (
        f"{quantity(len(table) - 1, 'study')}. Time: for one run after another, estimated from "
        "stored runs. Published: number of published cells beside measured values."
    )
    yield from (*_tried_line(studies), *rates.remarks, *_errors(studies))


def markdown_tables(studies: Iterable[Overview], folder: Path, address: str) -> Iterator[str]:
    """Return a Markdown table for each paper, without columns that depend on a store.

    Args:
        studies: The studies.
        folder: Their config folder.
        address: Address of the config folder in links.
    """
    paths = study_files.files(folder)
    by_paper: dict[str, list[Overview]] = {}
    for overview in studies:
        by_paper.setdefault(overview.paper, []).append(overview)
    for paper, rows_of_paper in by_paper.items():
        yield f"## {paper}"
        rows = [
            f"| [`{s.name}`]({address}/{paths[s.name].relative_to(folder).as_posix()}) "
            f"| {s.shows} | {s.title} "
            f"| {', '.join(s.datasets)} | {s.files} | {', '.join(s.methods)} | {s.runs} "
            f"| {s.published} |"
            for s in rows_of_paper
        ]
        head = "| study | shows | title | data set | files | methods | runs | published cells |"
        yield "\n".join([head, "|---|---|---|---|---|---|---:|---:|", *rows])
        yield from _tried_line(rows_of_paper)


@dataclass(frozen=True)
class RequiredRuns:
    """The runs that studies need, for the config as it is now.

    Attributes:
        runs: The runs by id.
        unplanned: The errors of studies that cannot be planned, by study.
    """

    runs: dict[str, Run] = field(default_factory=dict)
    unplanned: dict[str, FedloomError] = field(default_factory=dict)

    @property
    def remarks(self) -> list[str]:
        """A line for each study that cannot be planned."""
        return [f"{name} cannot be planned: {why}" for name, why in self.unplanned.items()]


def find_required_runs(
    folder: Path,
    studies: Iterable[str],
    ignore_written: bool = False,
    candidates: Collection[str] | None = None,
) -> RequiredRuns:
    """Plan each study by itself, so that one that cannot be planned does not stop the others.

    Whether models and methods can be trained is not tried.

    Args:
        folder: The config folder.
        studies: Names of the studies.
        ignore_written: Whether a plan that was written before is ignored.
        candidates: Runs of which is asked whether studies need them: as soon as all are needed, no
            further study is planned. None: all studies are planned.

    Raises:
        FedloomError: For what is wrong with the config of all studies.
    """
    settings = config.read_settings(folder)
    config.check_methods(folder)
    required = RequiredRuns()
    index = None if ignore_written else plan_files.read_current_index(folder, settings)
    written = {*index.studies} if index else set()
    log.info("looking for the runs that studies need, which takes seconds")
    for name in studies:
        if candidates is not None and required.runs.keys() >= {*candidates}:
            break
        try:
            plan_study = plan.read if name in written else plan.make
            runs = plan_study(folder, [name], checked=False).runs
        except FedloomError as error:
            required.unplanned[name] = error
        else:
            required.runs.update(runs)
    plan.supply(required.runs, settings)
    return required


def all_studies(folder: Path) -> list[str]:
    """Return the names of all studies of a config folder."""
    return [*study_files.files(folder)]
