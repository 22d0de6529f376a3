"""A plan in words: what it means, which runs are there, what the rest will cost."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from fl.base.digest import digest
from fl.base.schema import SETTING, UNSEEN
from fl.base.units import duration, quantity
from fl.plan import analyses, jobs
from fl.plan.bundle import Bundle
from fl.plan.estimate import Rates, client_steps, large_metrics
from fl.plan.plan import Plan
from fl.plan.study_plan import PlannedRun
from fl.report.cells import number, unit
from fl.report.facts import Facts
from fl.report.summaries import KEY, evaluated_clients, gaps
from fl.report.tables import point_text
from fl.store.store import Store

KEPT = "final weights or predictions that are asked for"
"""What a run that is there may lack: by an analysis, by what starts from it, or by the study."""


def lines(plan: Plan, store: Store, every_run: bool = False) -> Iterator[str]:
    """One line per method and setting of each study, then the totals.

    A run that two studies ask for is counted once in the totals.
    """
    members, bundles = plan.members, plan.bundles
    lacking = {
        name: bundle for name, bundle in bundles.items() if jobs.missing_members(bundle, store)
    }
    missing = [m for bundle in lacking.values() for m in jobs.missing_members(bundle, store)]
    again = {member.run for member in missing if store.has(member.run)}
    for name, study in plan.studies.items():
        yield f"{name}: {study.title}"
        groups: dict[tuple[str, ...], list[PlannedRun]] = {}
        for run in study.runs:
            key = (run.method, run.dataset, run.partition, run.model)
            groups.setdefault(key, []).append(run)
        for (method, *place), runs in groups.items():
            there = sum(store.has(run.run) for run in runs)
            bare = sum(run.run in again for run in runs)
            note = f" ({bare} without {KEPT})" if bare else ""
            yield f"  {method:16} {there:4} of {len(runs):4} runs there{note}   {' / '.join(place)}"
            if every_run:
                yield from (f"    {_run_line(run, store, again)}" for run in runs)
        for analysis in study.analyses:
            made = analyses.exists(Path(plan.settings.results), analysis.analysis)
            state = "there" if made else "to be made"
            yield f"  analysis {analysis.title or analysis.text}: {state}   {analysis.analysis}"
    note = f", {len(again)} of them again, for {KEPT}" if again else ""
    counts = f"{quantity(len(members), 'run')} in {quantity(len(plan.bundles), 'bundle')}"
    yield f"{counts}; {len(missing)} to train{note}"
    if missing:
        rates = Rates(store)
        others = sum(m.run not in again and digest(m.spec) in rates.specs for m in missing)
        if others:
            yield (
                f"{quantity(others, 'run')} of the same spec with other numbers (another version of"
                " code or data) in the store: python -m fl explain RUN"
            )
        yield from rates.remarks
        yield _cost([member.spec for member in missing], rates)
        yield _starts(plan, lacking, store, rates)
        yield from _crowds(lacking.values())


def _crowds(bundles: Iterable[Bundle]) -> Iterator[str]:
    """A line if the metrics of some bundle take much of the memory that its job asks for."""
    crowds = [(told, bundle) for bundle in bundles if (told := large_metrics(bundle))]
    if crowds:
        (rows, megabytes), bundle = max(crowds, key=lambda crowd: crowd[0])
        yield (
            f"{bundle.title}: about {rows:,} rows of metrics, for which a job needs up to "
            f"{megabytes:,} MB beside memory_mb: {bundle.execution.memory_mb}; fewer with "
            "training: {evaluate_clients: 1000} or a larger evaluate_every"
        )


def _starts(plan: Plan, lacking: dict[str, Bundle], store: Store, rates: Rates) -> str:
    """How many jobs are started, on this machine and on a cluster."""
    cores = len(os.sched_getaffinity(0))
    readers = jobs.readers({name: study.bundles for name, study in plan.studies.items()})
    here = list(jobs.form_jobs(lacking, store, jobs.Machine(cores, 1), readers))
    count = len(list(jobs.form_jobs(lacking, store, merge=True)))
    text = f"{quantity(len(here), 'start')} on {quantity(cores, 'core')} here (snakemake), or "
    text += f"{quantity(count, 'cluster job')} (snakemake --profile slurm)"
    if count > 1 and any(math.isinf(jobs.seconds(b, rates, store)) for b in lacking.values()):
        text += "; fewer where `execution: run_minutes` says how long runs are taken to last"
    return text


def _run_line(run: PlannedRun, store: Store, again: Collection[str]) -> str:
    state = "there" if store.has(run.run) and run.run not in again else "to train"
    return f"{run.run}  seed {run.seed:<6} {state:9} {point_text(run.point)}".rstrip()


def _cost(specs: list[dict[str, Any]], rates: Rates) -> str:
    steps = sum(client_steps(spec) for spec in specs)
    seconds = rates.seconds(specs)
    if seconds is None:
        time = "time unknown until a run like each of them is in the store"
    else:
        time = f"about {duration(seconds)} one after another, at the rate of the runs there, and "
        time += "seconds for each start"
    return f"{steps:,} local steps of a client to go, for each pass and model of a method; {time}"


def there(study: dict[str, Any], store: Store) -> str:
    """How many of a study's runs are in the store."""
    runs = {run["run"] for run in study["runs"]}
    return f"{sum(map(store.has, runs))} of {len(runs)} runs there"


def results(facts: Facts) -> Iterator[str]:
    """The summaries of a study (see `fl.report.summaries.summarise`) by method and setting, over
    draws where data or partitions are drawn.

    Beside a method stand the chosen point of its grid (draws have their own), its missing and
    diverged runs and the missing points of its grid, whose best point may yet change; at the end,
    all missing and diverged runs.
    """
    study, runs, metric = facts.plan, facts.runs, facts.metric
    facts = facts.drawn or facts
    titles = {run["method"]: run["title"] for run in study["runs"]}
    points = runs[runs["selected"]].groupby(KEY)["point"].first()
    chosen = {} if facts.over_draws else points.to_dict()
    # To summarise nothing takes as long as to summarise what there is.
    held_out = (facts.rows["split"] == UNSEEN).any()
    unseen = facts.unseen_summary if held_out else facts.summary[:0]
    yield study["title"]
    samples = evaluated_clients(study).items()
    told = (f"{titles[m]} {' or '.join(f'{n:,}' for n in counts)}" for m, counts in samples)
    if samples:
        yield f"scored on samples of clients, or on all if they are fewer: {', '.join(told)}"
    for summary, whose in ((facts.summary, ""), (unseen, ", clients held out of training")):
        for setting, rows in summary.groupby(SETTING, sort=False):
            if rows["n_clients"].any() or not whose:
                yield f"{' / '.join(map(str, setting))}: test {unit(metric)}{whose}"
                yield from _table(rows, metric, titles, chosen, facts.replicates)
    counts = runs.drop_duplicates("run")["state"].value_counts()
    if set(counts.index) != {"complete"}:
        yield ", ".join(f"{count} {state}" for state, count in counts.items())


def _table(
    rows: pd.DataFrame, metric: str, titles: dict[str, str], chosen: dict[Any, str], over: str
) -> Iterator[str]:
    yield f"  {'method':20} {'mean':>6} {f'sd over {over}':>14} {'worst client':>13}  {over}"
    for row in rows.to_dict("records"):
        mean, spread, worst = (number(row[key], metric) for key in ("mean", "sd_seeds", "worst"))
        line = f"  {titles[row['method']]:20} {mean:>6} {spread:>14} {worst:>13}"
        notes = [chosen.get((*(row[key] for key in KEY),), ""), gaps(row)]
        yield f"{line}  {row['n_seeds']:5}  {', '.join(filter(None, notes))}".rstrip()
