"""The report of a study: one offline HTML page, and its tables in Markdown and LaTeX.

`load`, `draws` and `curves` give the same numbers as data frames, for notebooks and scripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from fl.base import files
from fl.base.errors import DataError, Location, unknown_name
from fl.base.schema import SETTING, UNSEEN
from fl.plan import plan_files, result_paths
from fl.plan.study_plan import StudyPlan
from fl.report import figures, latex, page, references, result_files, summaries
from fl.report.cells import Table
from fl.report.facts import Facts, gather, read_plan
from fl.report.figures import Figure
from fl.report.method_tables import AREA, NO_AREA
from fl.report.outline import Section, blocks, outline
from fl.report.summaries import KEY

COLUMNS = [
    *KEY,
    *("title", "point", "stage", "round"),
    *("mean", "sd_seeds", "sd_clients", "worst", "p10"),
    *("n_clients", "n_seeds", "n_diverged", "n_missing"),
]
"""Columns of `load`; ``docs/guide/analyse.md`` describes them. In `draws`, ``draw`` follows those
of `fl.base.schema.SETTING` if a setting has several draws.
"""


def build(study: str, results: Path, store: Path, plan: StudyPlan | None = None) -> list[Path]:
    """Write the report of a study's finished runs.

    Its files are ``results/report/<study>.html``, ``.md``, ``.tex`` and ``.bib``. Every
    figure is an SVG and a PDF file in ``results/report/<study>/``, every table a LaTeX file there.
    Missing and diverged runs are named. Incomplete tables of the study are made again first.

    Args:
        study: Name of the study.
        results: Folder of the results.
        store: Folder of the runs.
        plan: The study's plan, if not the one in ``results/plan``.

    Returns:
        The paths of the four files and of the folder.

    Raises:
        DataError: For a study that is not planned or a file that cannot be read.
    """
    facts = gather(study, results, store, plan)
    sections = outline(facts)
    folder = result_paths.report_folder(results)
    paths: list[Path] = []
    with files.disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        drawn = [block for block in blocks(sections) if isinstance(block, Figure)]
        tables = [block for block in blocks(sections) if isinstance(block, Table)]
        files_by_name = {f"{n}.tex": t.encode() for n, t in latex.documents(facts, tables).items()}
        result_files.write_folder(folder / study, figures.contents(drawn) | files_by_name)
        # The page comes last: if it is of this plan, so are the other files.
        for end, text in reversed(texts(facts, sections).items()):
            paths.insert(0, folder / f"{study}{end}")
            files.write_bytes(paths[0], text.encode())
    return [*paths, folder / study]


def table(study: str, name: str, results: Path, store: Path, plan: StudyPlan | None = None) -> str:
    """Return one table of a study's report in Markdown, under its caption.

    Args:
        study: Name of the study.
        name: Name of the table in the report's files, such as ``settings``, ``draws``,
            ``differences``, ``paired`` or ``costs``.
        results: Folder of the results.
        store: Folder of the runs.
        plan: The study's plan, if not the one in ``results/plan``.

    Raises:
        ConfigError: For a table that the report does not have.
        DataError: As `build`.
    """
    drawn = blocks(outline(gather(study, results, store, plan)))
    tables = {block.name: block for block in drawn if isinstance(block, Table)}
    if name not in tables:
        raise unknown_name(Location(f"the report of {study}"), "table", name, tables)
    return page.to_markdown(replace(tables[name], number=""))


def texts(facts: Facts, sections: Sequence[Section]) -> dict[str, str]:
    """Return the report in HTML, Markdown, LaTeX and BibTeX, by the ending of the file."""
    tables = [block for block in blocks(sections) if isinstance(block, Table)]
    return {
        ".html": page.html(facts, sections),
        ".md": page.markdown(facts, tables),
        ".tex": latex.document(facts, tables),
        ".bib": references.document(facts),
    }


def load(
    study: str | StudyPlan,
    results: str | Path = "results",
    store: str | Path | None = None,
    metric: str | None = None,
    unseen: bool = False,
) -> pd.DataFrame:
    """Return a study's main table: a row for each setting and method, at the selected point.

    The columns are `COLUMNS`. Values are on the clients' test samples; shares are fractions of one:
    0.96 where the report says 96.0. If a setting has several draws, values are means over them, as
    in the report: ``sd_seeds`` is the deviation over draws, ``n_seeds`` their number, and ``point``
    lists the points that they chose; `draws` has a row for each. Nothing is written.

    Args:
        study: Name of the study, or its plan, see `fl.plan.plan.Plan`.
        results: Folder of results.
        store: Folder of runs, by default that of the plan. It is read only if a table in
            ``results/tables`` is missing, incomplete or of another plan.
        metric: The metric, by default that of the study.
        unseen: Whether values are of the clients that were held out of training.

    Raises:
        DataError: If the study was not planned, no row has the metric, or a file cannot be read.
    """
    facts = _facts(study, results, store, metric)
    facts = facts.merged_draws or facts
    return _main(facts, metric, unseen)[COLUMNS]


def draws(
    study: str | StudyPlan,
    results: str | Path = "results",
    store: str | Path | None = None,
    metric: str | None = None,
    unseen: bool = False,
) -> pd.DataFrame:
    """Return a row for each setting, draw and method; without several draws, the table of `load`.

    Arguments and errors are those of `load`. ``mean`` and ``sd_seeds`` are over the training seeds
    of a draw.
    """
    facts = _facts(study, results, store, metric)
    names = [*SETTING, "draw"] if (facts.runs["draw"] != "").any() else SETTING
    return _main(facts, metric, unseen)[[*names, *COLUMNS[len(SETTING) :]]]


def curves(
    study: str | StudyPlan,
    results: str | Path = "results",
    store: str | Path | None = None,
    unseen: bool = False,
) -> pd.DataFrame:
    """Return a row for each method, seed, round, client and metric of a study.

    The columns are `fl.report.summaries.CURVE_COLUMNS`. Runs are complete and at the selected
    point; their last round is that of `load`, unless the study says ``scored: best``. A method that
    starts from a stored model continues the rounds and bytes of that model, while `load` counts its
    own rounds only. Arguments and errors are those of `load`.
    """
    _, rows, runs = _tables(study, results, store)
    return summaries.curves(rows, runs, UNSEEN if unseen else "test")


def _facts(
    study: str | StudyPlan, results: str | Path, store: str | Path | None, metric: str | None
) -> Facts:
    """Return a study's tables; an error for a metric that no row has."""
    facts = Facts(*_tables(study, results, store))
    metric_names = sorted(facts.rows["metric"].unique())
    if metric == AREA and AREA not in metric_names and AREA in facts.plan.metrics:
        raise DataError(f"metric: is {metric!r}, but {NO_AREA}", ", ".join(metric_names))
    if metric is not None and metric_names and metric not in metric_names:
        raise DataError(f"metric: is {metric!r}. Allowed: {', '.join(metric_names)}")
    return facts


def _main(facts: Facts, metric: str | None, unseen: bool) -> pd.DataFrame:
    """Return the summary of a metric with draws, titles and selected points."""
    summary = facts.summarise(metric or facts.metric, UNSEEN if unseen else "test")
    if unseen:
        summary = summary[summary["n_clients"] > 0]
    chosen = facts.with_settings(facts.runs.loc[facts.runs["selected"]])
    named = chosen.groupby(KEY, sort=False).agg(
        draw=("draw", "first"),
        title=("title", "first"),
        point=("point", lambda points: "; ".join(points.unique())),
    )
    return summary.merge(named.reset_index(), on=KEY, how="left")


def _tables(
    study: str | StudyPlan, results: str | Path, store: str | Path | None
) -> tuple[StudyPlan, pd.DataFrame, pd.DataFrame]:
    """Return a study's plan, its long table and its runs table."""
    results = Path(results)
    plan = read_plan(study, results) if isinstance(study, str) else study
    store = Path(store or plan_files.store_of(results) or results / "runs")
    return plan, *result_files.read(plan, store, results)
