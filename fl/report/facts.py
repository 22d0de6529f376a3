"""Data of a report: a study's plan, its tables, its partitions, its analyses, its versions."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fl.base.arithmetic import PORTABLE
from fl.base.errors import DataError
from fl.base.schema import (
    COMPLETE,
    DIVERGED,
    MISSING,
    PARTIAL_METRICS,
    SETTING,
    UNSEEN,
    StudySetting,
)
from fl.base.units import quantity
from fl.plan import plan_files
from fl.plan.study_plan import StudyPlan
from fl.report import analysis_results, claims, result_files, summaries
from fl.report.analysis_results import Analysis
from fl.report.cells import unit
from fl.report.partitions import Partition, read


@dataclass(frozen=True)
class Names:
    """Names of settings: the texts that all of them share, and those in which each differs.

    The name of a single setting is complete, and no text is shared.
    """

    common: tuple[str, ...]
    distinct: dict[StudySetting, tuple[str, ...]]


@dataclass(frozen=True)
class AbsentRun:
    """Run that is missing or diverged.

    Attributes:
        run: Its id.
        method: Title of its method, with its point of the grid.
        setting: Name of its setting.
        seed: Its training seed.
        anchor: Link to the runs of its method and setting.
    """

    run: str
    method: str
    setting: str
    seed: int
    anchor: str


@dataclass(frozen=True)
class Facts:
    """A study as a report shows it.

    Attributes:
        plan: Plan of the study.
        rows: Table of values, see `fl.report.tables`.
        runs: Table of runs.
        partitions: Partitions by id, as far as their folders exist.
        versions: Environments in which the runs were computed.
        store: Path of the store, for the report.
        analyses: Analyses of the study.
        over_draws: Whether all draws of data and partition are one setting, see `merged_draws`.
    """

    plan: StudyPlan
    rows: pd.DataFrame
    runs: pd.DataFrame
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    versions: tuple[str, ...] = ()
    store: str = ""
    analyses: tuple[Analysis, ...] = ()
    over_draws: bool = False

    @cached_property
    def merged_draws(self) -> Facts | None:
        """Return these facts with all draws of a setting as one; None without several draws."""
        settings = self.setting_by_scenario.values()
        return replace(self, over_draws=True) if len(set(settings)) < len(settings) else None

    @cached_property
    def setting_by_scenario(self) -> summaries.SettingByScenario:
        """Return the setting of each data set, partition and model."""
        return summaries.setting_by_scenario(self.plan)

    @property
    def replicates(self) -> str:
        """Name of the replicates over which means and deviations are."""
        return "draws" if self.over_draws else "seeds"

    @property
    def metric(self) -> str:
        """Metric of the study."""
        return self.plan.metric

    @property
    def uses_all_test_samples(self) -> bool:
        """Whether every client's model is scored on the test samples of all clients."""
        return self.plan.test == "global"

    @property
    def round_note(self) -> str:
        """A sentence for captions if another round than the last one counts; else empty."""
        if self.plan.scored != "best":
            return ""
        return " Final: of each client, the round that is best on its own validation samples."

    @cached_property
    def settings(self) -> list[StudySetting]:
        """The settings in the plan's order."""
        frame = self.with_settings(self.runs[SETTING].drop_duplicates()).drop_duplicates()
        return list(frame.itertuples(index=False, name=None))

    @cached_property
    def names(self) -> Names:
        """Return the names of settings, by the plan."""
        return setting_names(self.plan, self.over_draws)

    @property
    def common_note(self) -> str:
        """Sentences that hold for all tables of scores; empty if there are none."""
        common = f"In every setting: {' · '.join(self.names.common)}." if self.names.common else ""
        return " ".join(
            filter(None, (common, self.sample_note, self.budget_note, self.backend_note))
        )

    @property
    def budget_note(self) -> str:
        """A sentence on methods with different numbers of rounds; empty if all have the same."""
        texts: dict[str, list[str]] = {}
        for method, runs in summaries.stored_runs(self.runs).groupby("method", sort=False):
            texts.setdefault(_rounds(runs), []).append(self.methods[str(method)])
        if len(texts) < 2:
            return ""
        common_text = max(texts, key=lambda text: len(texts[text]))
        other_texts = (f"{', '.join(m)} {text}" for text, m in texts.items() if text != common_text)
        sum_text = " (a stored model's, then its own)" if any("+" in t for t in texts) else ""
        return f"Rounds of training: {common_text}, but {'; '.join(other_texts)}{sum_text}."

    @property
    def backend_note(self) -> str:
        """A sentence on runs with different backends or devices; empty if all have the same."""
        texts: dict[str, list[str]] = {}
        for method, runs in summaries.stored_runs(self.runs).groupby("method", sort=False):
            used = runs[["backend", "device"]].dropna().itertuples(index=False, name=None)
            text = " and ".join(f"{backend} on {device}" for backend, device in sorted({*used}))
            texts.setdefault(text, []).append(self.methods[str(method)])
        common_text = max(texts, key=lambda text: len(texts[text]), default="")
        if len(texts) < 2 and " and " not in common_text:
            return ""
        other_texts = (f"{', '.join(m)} {text}" for text, m in texts.items() if text != common_text)
        mixed = f"Backends: {'; but '.join(filter(None, (common_text, '; '.join(other_texts))))}"
        return f"{mixed}. Results of two backends or devices differ by rounding."

    @cached_property
    def longer_training(self) -> dict[str, str]:
        """Rounds of methods that had more than most, by method: ``6 + 2 rounds``."""
        groups = summaries.stored_runs(self.runs).groupby("method", sort=False)
        totals = {
            str(method): (runs["rounds"] + runs["rounds_before"]).max() for method, runs in groups
        }
        known_totals = pd.Series(totals, dtype="float64").dropna()
        if known_totals.nunique() < 2:
            return {}
        usual_total = known_totals.mode().min()
        texts = {str(method): f"{_rounds(runs)} rounds" for method, runs in groups}
        above = known_totals.index[known_totals > usual_total]
        return {str(method): texts[str(method)] for method in above}

    @property
    def sample_note(self) -> str:
        """A sentence if models are scored on a sample of the clients; empty if on all clients."""
        sizes = sorted({len(p.clients) - len(p.unseen) for p in self.partitions.values()})
        counts = summaries.evaluated_clients(self.plan)
        samples = {
            title: " or ".join(
                f"{n:,} of {m:,}" for n in counts.get(method, ()) for m in sizes if n < m
            )
            for method, title in self.methods.items()
        }
        distinct_samples = set(samples.values())
        drawn = ", drawn again for each seed" if self.runs["seed"].nunique() > 1 else ""
        if len(distinct_samples) == 1:
            [sample] = distinct_samples
            return f"Scores are over a sample of {sample} clients{drawn}." if sample else ""
        sizes_by_method = (f"{title} {sample or 'all'}" for title, sample in samples.items())
        return f"Scores are over samples of clients{drawn}: {'; '.join(sizes_by_method)}."

    def undefined_note(self, metric: str) -> str:
        """Return a sentence if the metric has no value for some scored clients; else empty."""
        rows = summaries.complete_rows(self.rows[self.rows[summaries.REPORTED]], self.runs)
        rows = rows[rows["split"] == "test"]
        final = summaries.final_rows(rows, metric)
        counts, scored = (t.groupby("run")["client"].nunique() for t in (final, rows))
        if metric not in PARTIAL_METRICS or not len(counts) or counts.equals(scored):
            return ""
        return (
            f"{unit(metric)}: mean over {span(counts)} of {span(scored)} clients, as it is not "
            "defined on the test samples of the others."
        )

    @cached_property
    def methods(self) -> dict[str, str]:
        """Names to show, by label: the title, with the label if several titles are equal.

        The user's own method is marked as ``(ours)``.
        """
        titles = dict(zip(self.runs["method"], self.runs["title"], strict=True))
        shown = list(titles.values())
        names = {m: t if shown.count(t) == 1 else f"{t} ({m})" for m, t in titles.items()}
        return {m: f"{t} (ours)" if m == self.plan.ours else t for m, t in names.items()}

    def with_settings(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a frame with the settings of these facts, whose draws may be merged."""
        return (
            summaries.without_draws(frame, self.setting_by_scenario) if self.over_draws else frame
        )

    def in_settings(self, settings: Collection[StudySetting]) -> Facts:
        """Return the facts of some settings."""

        def chosen(frame: pd.DataFrame) -> pd.DataFrame:
            places = pd.MultiIndex.from_frame(self.with_settings(frame)[SETTING])
            return frame[places.isin(settings)]

        runs = chosen(self.runs)
        ids = {*runs["partition_id"]}
        partitions = {name: part for name, part in self.partitions.items() if name in ids}
        return replace(self, rows=chosen(self.rows), runs=runs, partitions=partitions)

    def with_units(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a frame `with_settings` and a column ``unit``, the seed or draw of each row."""
        if not self.over_draws:
            return frame.assign(unit=frame["seed"])
        units = ["; ".join(setting) for setting in frame[SETTING].itertuples(index=False)]
        return self.with_settings(frame.assign(unit=units))

    def mean_over_draws(
        self, frame: pd.DataFrame, spreads: Mapping[str, str], keys: Sequence[str] = summaries.KEY
    ) -> pd.DataFrame:
        """Return means over draws, see `fl.report.summaries.over_draws`; else the frame itself."""
        if not self.over_draws:
            return frame
        return summaries.over_draws(frame, self.setting_by_scenario, spreads, keys)

    def summarise(self, metric: str, split: str = "test") -> pd.DataFrame:
        """Return `fl.report.summaries.summarise` of a metric, over draws if they are merged."""
        summary = summaries.summarise(self.rows, self.runs, metric, split)
        return self.mean_over_draws(summary, {"mean": "sd_seeds", "weighted": "weighted_sd_seeds"})

    @cached_property
    def summary(self) -> pd.DataFrame:
        """The summary of the study's metric, see `summarise`."""
        return self.summarise(self.metric)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """The values of runs by round, see `fl.report.summaries.run_curves`."""
        return summaries.run_curves(self.rows, self.runs, self.metric)

    @cached_property
    def timed_curves(self) -> pd.DataFrame:
        """The values of runs with devices by round, with simulated ``seconds`` and ``bytes``."""
        lines = self.curves.dropna(subset="simulated_seconds")
        return lines.assign(seconds=lines["simulated_seconds"])

    @cached_property
    def pace(self) -> pd.DataFrame:
        """What runs take to shares of their final value, see `fl.report.summaries.pace`."""
        return summaries.pace(self.rows, self.runs, self.metric)

    @cached_property
    def claims(self) -> pd.DataFrame:
        """Comparisons of methods, see `fl.report.claims.compare_methods`."""
        return self.claims_on(self.metric)

    @cached_property
    def unseen_claims(self) -> pd.DataFrame:
        """Comparisons on the clients that were held out of training, a family of their own."""
        return self._comparisons(UNSEEN, self.metric)

    def claims_on(self, metric: str) -> pd.DataFrame:
        """Return the comparisons by a metric, each metric a family of its own."""
        if metric not in self._claims_by_metric:
            self._claims_by_metric[metric] = self._comparisons("test", metric)
        return self._claims_by_metric[metric]

    @cached_property
    def _claims_by_metric(self) -> dict[str, pd.DataFrame]:
        return {}

    def only(self, methods: Sequence[str], metric: str) -> Facts:
        """Return these facts of some methods, in their order, and of a metric.

        Comparisons stay those of all methods, so that the verdicts are the report's.
        """
        runs = pd.concat([self.runs[self.runs["method"] == method] for method in methods])
        rows = self.rows[self.rows["method"].isin(methods)]
        facts = replace(self, plan=replace(self.plan, metric=metric), runs=runs, rows=rows)
        facts._claims_by_metric[metric] = self.claims_on(metric)
        return facts

    def _comparisons(self, split: str, metric: str) -> pd.DataFrame:
        """Return the comparisons on the clients of a split of test samples."""
        rows = self.rows[self.rows["split"] == split].assign(split="test")
        scored = summaries.complete_rows(summaries.final_rows(rows, "accuracy"), self.runs)
        floors = claims.majority_errors(
            scored,
            self.runs,
            self.partitions,
            all_samples=self.uses_all_test_samples and split != UNSEEN,
            unseen=split == UNSEEN,
        )
        return claims.compare_methods(
            rows,
            self.runs,
            metric,
            self.plan.baseline,
            self.plan.contrasts,
            settings=self.setting_by_scenario,
            floors=floors,
        )

    @cached_property
    def unseen_summary(self) -> pd.DataFrame:
        """The summary of the clients that were held out of training; NaN if there are none."""
        return self.summarise(self.metric, UNSEEN)

    @cached_property
    def without_attackers(self) -> Facts | None:
        """Return these facts without clients that attack in any run of their setting and seed.

        None if no client is known to attack. If the record of a run does not name attackers, none
        of its clients is left.
        """
        if summaries.ATTACKS not in self.rows:
            return None
        of_client = [*SETTING, "seed", "client"]
        attacks = self.rows[summaries.ATTACKS]
        places = pd.MultiIndex.from_frame(self.rows[of_client])
        attackers = places[attacks.fillna(False).to_numpy(bool)]
        is_honest = attacks.notna().to_numpy() & ~places.isin(attackers)
        return replace(self, rows=self.rows[is_honest])

    def of_clients(self, rows: pd.DataFrame, trait: str, value: Any) -> pd.DataFrame:
        """Return the rows of clients with one ``modality``, or of one ``domain``."""
        chosen: pd.DataFrame = rows[self.traits(rows, trait) == value]
        return chosen

    def traits(self, rows: pd.DataFrame, trait: str) -> pd.Series:
        """Return the ``modality`` or ``domain`` of each row's client; None if unknown."""
        partitions = dict(zip(self.runs["run"], self.runs["partition_id"], strict=True))
        names = {
            (run, client): kind
            for run, partition in partitions.items()
            if partition in self.partitions
            for client, kind in enumerate(getattr(self.partitions[partition], trait))
        }
        pairs = zip(rows["run"], rows["client"], strict=True)
        return pd.Series([names.get(pair) for pair in pairs], rows.index, dtype=object)

    @cached_property
    def shares_training_seeds(self) -> bool:
        """Whether a training seed of a method occurs in several draws of a setting."""
        draws: dict[tuple[str, str, int], set[str]] = {}
        for run in (run for run in self.plan.runs if run.draw):
            draws.setdefault((run.setting, run.method, run.seed), set()).add(run.draw)
        return any(len(drawn) > 1 for drawn in draws.values())

    @property
    def counts(self) -> dict[str, int]:
        """The number of runs in each state."""
        states = self.runs["state"]
        return {state: int((states == state).sum()) for state in (COMPLETE, DIVERGED, MISSING)}

    @property
    def status(self) -> str:
        """The number of runs in each state, as a sentence."""
        counts = ", ".join(f"{count} {state}" for state, count in self.counts.items())
        return f"{len(self.runs)} runs: {counts}."

    @property
    def adopted_note(self) -> str:
        """A sentence on runs that were trained under other names; empty if there are none."""
        adopted = int(self.runs["trained_as"].notna().sum())
        counts = f"{adopted} of {quantity(len(self.runs), 'run')}"
        note = f"{counts} were trained under other names of the code, see the column trained_as."
        return note if adopted else ""

    @cached_property
    def absent(self) -> dict[str, list[AbsentRun]]:
        """The runs that are not complete, by state."""
        runs: dict[str, list[AbsentRun]] = {MISSING: [], DIVERGED: []}
        columns = [*SETTING, "method", "point", "run", "seed", "state"]
        for row in self.runs.loc[self.runs["state"] != COMPLETE, columns].to_dict("records"):
            setting = (row["dataset"], row["partition"], row["model"])
            runs[row["state"]].append(
                AbsentRun(
                    run=row["run"],
                    method=", ".join(filter(None, (self.methods[row["method"]], row["point"]))),
                    setting=self.short_name(setting),
                    seed=row["seed"],
                    anchor=self.anchor(setting, row["method"]),
                )
            )
        return runs

    def anchor(self, setting: StudySetting, method: str) -> str:
        """Return the link to the runs of a method in a setting; empty if draws are merged."""
        if self.over_draws or setting not in self.settings:
            return ""
        return f"#runs-{self.settings.index(setting) + 1}-{list(self.methods).index(method) + 1}"

    def partitions_of(self, setting: StudySetting) -> list[Partition]:
        """Return the partitions of a setting's runs; several if seeds or draws have their own."""
        runs = self.with_settings(self.runs.drop_duplicates([*SETTING, "partition_id"]))
        names = rows_of_setting(runs, setting)["partition_id"].unique()
        return [self.partitions[name] for name in names if name in self.partitions]

    def majority(self, setting: StudySetting) -> pd.Series:
        """Return the accuracy of predicting each client's majority class; mean over partitions."""
        majorities = [p.majority(self.uses_all_test_samples) for p in self.partitions_of(setting)]
        return (
            pd.concat(majorities).groupby(level=0).mean() if majorities else pd.Series(dtype=float)
        )

    def population(self, setting: StudySetting) -> float:
        """Return the accuracy of predicting the majority class of all, mean over clients."""
        all_samples = self.uses_all_test_samples
        majorities = [p.majority(all_samples, True).mean() for p in self.partitions_of(setting)]
        return sum(majorities) / len(majorities) if majorities else float("nan")

    def short_name(self, setting: StudySetting) -> str:
        """Return a setting in one line, without the texts that all settings share."""
        return " · ".join(self.names.distinct.get(setting, setting))


def span(counts: pd.Series) -> str:
    """Return ``20``, or ``12 to 20`` if counts differ; a count that is not known is ``unknown``."""
    if counts.isna().any():
        return "unknown"
    first, last = int(counts.min()), int(counts.max())
    return f"{first} to {last}" if last > first else str(first)


def _rounds(runs: pd.DataFrame) -> str:
    """Return the rounds of a method's runs: ``6``, or ``6 + 2`` after those of a stored model."""
    own_rounds, start_rounds = span(runs["rounds"]), span(runs["rounds_before"])
    return own_rounds if start_rounds == "0" else f"{start_rounds} + {own_rounds}"


def gather(
    study: str,
    results: Path,
    store: Path,
    plan: StudyPlan | None = None,
    writes_tables: bool = True,
) -> Facts:
    """Read a study; its tables are made again unless they are complete and of the same plan.

    Args:
        study: Name of the study.
        results: Folder of the results.
        store: Folder of the runs.
        plan: The study's plan, if not the one in ``results/plan``.
        writes_tables: Whether tables that are made again are written.
    """
    plan = plan or read_plan(study, results)
    if writes_tables:
        tables = result_files.read_current(plan, results)
        rows, runs = tables or result_files.write(plan, store, results)
    else:
        rows, runs = result_files.read(plan, store, results)
    partitions = read_partitions(results, runs, plan.titles)
    analyses = tuple(
        analysis_results.read_analysis(results, analysis) for analysis in plan.analyses
    )
    versions, shown = _versions(runs), _shown(results, store)
    return Facts(plan, rows, runs, partitions, versions, shown, analyses)


def read_partitions(
    results: Path, runs: pd.DataFrame, titles: Mapping[str, Mapping[str, str]]
) -> dict[str, Partition]:
    """Return the partitions of runs by id, without those whose folder does not exist.

    Args:
        results: Folder of the results.
        runs: Table of runs.
        titles: Titles of data sets and partitions by kind and text.
    """
    partitions: dict[str, Partition] = {}
    for row in runs.drop_duplicates("partition_id").to_dict("records"):
        title = " · ".join(titles.get(k, {}).get(row[k], row[k]) for k in SETTING[:2])
        partition = read(results, row["partition_id"], title)
        if partition is not None:
            partitions[row["partition_id"]] = partition
    return partitions


def rows_of_setting(frame: pd.DataFrame, setting: StudySetting) -> pd.DataFrame:
    """Return the rows of a frame that belong to a setting."""
    return frame[(frame[SETTING] == list(setting)).all(axis=1)]


def read_plan(study: str, results: Path) -> StudyPlan:
    """Return the last plan of a study.

    Raises:
        DataError: If the study was not planned, or its plan cannot be read.
    """
    path = plan_files.file_of(results, "studies", study)
    if not path.exists():
        names = [planned.stem for planned in plan_files.all_files(results, "studies")]
        planned = ", ".join(names) or "none"
        raise DataError(
            f"{path}: does not exist (planned studies: {planned})", advice="fedloom plan --write"
        )
    return plan_files.read_study(results, study)


ENVIRONMENT = (
    *("fedloom", "python", "torch", "numpy", "mkl", "onednn", "cuda"),
    *("arithmetic", "processor", "instructions", "device"),
)
"""Columns of the software and hardware that computed a run."""
HARDWARE = ["processor", "instructions", "device"]
"""Those that decide no bit of portable arithmetic."""


def _versions(runs: pd.DataFrame) -> tuple[str, ...]:
    """Return the environments in which the runs were computed, as far as they decide bits."""
    texts = set()
    rows = runs[[*ENVIRONMENT]].copy()
    rows.loc[rows["arithmetic"] == PORTABLE, HARDWARE] = pd.NA
    for row in rows.drop_duplicates().to_dict("records"):
        words = (f"{name} {value}" for name, value in row.items() if isinstance(value, str))
        texts.add(", ".join(words))
    return tuple(sorted(texts - {""}))


def _shown(results: Path, store: Path) -> str:
    """Return the path of the store for a report, relative to the project if it is inside."""
    relative = os.path.relpath(store, results.absolute().parent)
    return (str(store) if relative.startswith("..") else relative).replace(os.sep, "/")


def setting_names(plan: StudyPlan, over_draws: bool) -> Names:
    """Return the names of settings, or of their draws.

    Args:
        plan: Plan of the study.
        over_draws: Whether all draws of a setting have one name.
    """
    settings = {setting.id: setting for setting in plan.settings}
    common = tuple(filter(None, [plan.shared]))
    names: dict[StudySetting, tuple[str, ...]] = {}
    for run in plan.runs:
        setting = settings[run.setting]
        if over_draws:
            key = setting.dataset, setting.partition, setting.model
            names[key] = (setting.short_title,)
            continue
        key = run.dataset, run.partition, run.model
        if len(settings) == 1 and run.draw:
            common, names[key] = (setting.title,), (run.draw,)
        else:
            names[key] = tuple(filter(None, [setting.short_title, run.draw]))
    return Names(common, names)
