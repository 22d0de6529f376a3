"""All studies of a config folder: which table or figure of which paper each is, and what it takes.

Nothing is trained, and no model is tried. A study's paper is the file of `published/` whose name
its own begins with, or whose cells it names; its key ``shows`` says which table it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl.base.errors import FedloomError, Location, unknown_name
from fl.base.units import duration, quantity
from fl.cli.printing import aligned
from fl.plan import config, plan, required_runs
from fl.plan.estimate import Rates
from fl.store.store import Store

NONE = "no paper"


@dataclass(frozen=True)
class Overview:
    """A study, seen from far.

    Attributes:
        shows: The paper's tables and figures; empty where the paper does not number them.
        published: How many published cells its report sets beside what was measured.
        once: Whether its whole path has run for a round, as ``published/ran-once.txt`` says.
        runs: Of each its spec.
        trouble: Why it cannot be planned; then the rest is empty.
    """

    name: str
    paper: str
    shows: str
    title: str = ""
    datasets: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    published: int = 0
    once: bool = False
    runs: Mapping[str, Mapping[str, Any]] | None = None
    trouble: str = ""


def look(folder: Path, paper: str = "") -> list[Overview]:
    """The studies of a paper, by default of all of them, sorted by paper.

    Raises:
        FedloomError: For a paper that no study is of.
    """
    papers = sorted((path.stem for path in (folder / "published").glob("*.csv")), key=len)
    each = [
        _overview(folder, name, papers[::-1], paper) for name in required_runs.all_studies(folder)
    ]
    seen = [overview for overview in each if overview is not None]
    if paper and not seen:
        raise unknown_name(Location("the command line"), "paper", paper, [*papers, NONE])
    return sorted(seen, key=lambda overview: (overview.paper == NONE, overview.paper))


def _overview(folder: Path, name: str, papers: Iterable[str], wanted: str) -> Overview | None:
    try:
        study, _ = config.read_study(folder, name, Location(name))
        sources = {cells.source for cells in (*study.published, study.best) if cells is not None}
        trouble, shows = "", study.shows
    except FedloomError as error:
        sources, trouble, shows = set(), str(error), ""
    paper = next((p for p in papers if name.startswith(p) or f"{p}.csv" in sources), NONE)
    if wanted not in ("", paper):
        return None
    if trouble:
        return Overview(name, paper, shows, trouble=trouble)
    try:
        planned = plan.make(folder, [name], checked=False)
    except FedloomError as error:
        return Overview(name, paper, shows, trouble=str(error))
    content = planned.studies[name]
    specs = {run: member.spec for run, member in planned.members.items()}
    return Overview(
        name,
        paper,
        shows,
        title=content.title,
        datasets=tuple(content.names["data set"]),
        methods=tuple(content.names["method"]),
        published=len(content.published),
        once=name in _ran_once(folder),
        runs=specs,
    )


def _ran_once(folder: Path) -> set[str]:
    path = folder / "published" / "ran-once.txt"
    return set(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else set()


def _once(overviews: Iterable[Overview]) -> Iterator[str]:
    if names := [each.name for each in overviews if each.once]:
        yield f"Run for a round on generated files, from download to report: {', '.join(names)}."


def lines(overviews: Sequence[Overview], store: Store) -> Iterator[str]:
    """A table; runs and hours are by what is in the store."""
    rates, stored = Rates(store), {*store.runs()}
    what = ["methods", "runs", "there", "time", "published"]
    head = ("paper", "study", "shows", "data set", *what)
    table, troubles = list[tuple[str, ...]]([head]), list[str]()
    for each in overviews:
        if each.trouble:
            troubles.append(f"{each.name} cannot be planned: {each.trouble}")
            continue
        runs = each.runs or {}
        seconds = rates.seconds(runs.values())
        table.append(
            (
                *(each.paper, each.name, each.shows, ", ".join(each.datasets)),
                *map(str, (len(each.methods), len(runs), len(stored & {*runs}))),
                "unknown" if seconds is None else duration(seconds),
                str(each.published),
            )
        )
    yield from aligned(table)
    yield (
        f"{quantity(len(table) - 1, 'study')}. Time: for one run after another, estimated from "
        "stored runs. Published: number of published cells beside measured values."
    )
    yield from (*_once(overviews), *rates.remarks, *troubles)


def blocks(overviews: Iterable[Overview]) -> Iterator[str]:
    """The same as Markdown, without what depends on a store: a table for each paper."""
    by_paper: dict[str, list[Overview]] = {}
    for overview in overviews:
        by_paper.setdefault(overview.paper, []).append(overview)
    for paper, studies in by_paper.items():
        yield f"## {paper}"
        rows = [
            f"| [`{s.name}`](../config/studies/{s.name}.yaml) | {s.shows} | {s.title} "
            f"| {', '.join(s.datasets)} | {', '.join(s.methods)} | {len(s.runs or {})} "
            f"| {s.published} |"
            for s in studies
        ]
        head = "| study | shows | title | data set | methods | runs | published cells |"
        yield "\n".join([head, "|---|---|---|---|---|---:|---:|", *rows])
        yield from _once(studies)
