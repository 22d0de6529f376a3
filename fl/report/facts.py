"""What a report is made from: a study's plan, its tables, its partitions, its versions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fl.base.errors import DataError
from fl.base.schema import COMPLETE, DIVERGED, MISSING, SETTING, UNSEEN, StudySetting
from fl.plan import plan_files
from fl.plan.study_plan import StudyPlan
from fl.report import analysis_section, claims, majority, result_files, summaries
from fl.report.analysis_section import Analysis
from fl.report.partitions import Partition, read


@dataclass(frozen=True)
class Names:
    """The texts that distinguish several settings, in parts, and those that all of them share.

    A single setting shares nothing: its name is complete.
    """

    common: tuple[str, ...]
    distinct: dict[StudySetting, tuple[str, ...]]


@dataclass(frozen=True)
class AbsentRun:
    """A run that is missing or diverged.

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
    """A study as a report sees it.

    Attributes:
        over_draws: Whether a setting is all draws of its data set and partition, see `drawn`.
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
    def drawn(self) -> Facts | None:
        """Return these facts with all draws of a setting as one; None without several draws."""
        settings = self.setting_by_scenario.values()
        return replace(self, over_draws=True) if len(set(settings)) < len(settings) else None

    @cached_property
    def setting_by_scenario(self) -> summaries.SettingByScenario:
        """Return the setting of each data set, partition and model."""
        return summaries.setting_by_scenario(self.plan)

    @property
    def replicates(self) -> str:
        """The name of the replicates that means and deviations are over."""
        return "draws" if self.over_draws else "seeds"

    @property
    def metric(self) -> str:
        """The study's metric."""
        return self.plan.metric

    @property
    def uses_all_test_samples(self) -> bool:
        """Whether every client's model is scored on the test samples of all clients."""
        return self.plan.test == "global"

    @property
    def when(self) -> str:
        """A sentence for captions where another round than the last counts."""
        if self.plan.scored != "best":
            return ""
        return " Final: of each client, the round that is best on its own validation samples."

    @cached_property
    def settings(self) -> list[StudySetting]:
        """The settings in the plan's order."""
        frame = self.placed(self.runs[SETTING].drop_duplicates()).drop_duplicates()
        return list(frame.itertuples(index=False, name=None))

    @cached_property
    def names(self) -> Names:
        """Return the names of settings, by the plan."""
        return setting_names(self.plan, self.over_draws)

    @property
    def everywhere(self) -> str:
        """Sentences that hold for all tables of scores; empty if there are none."""
        common = f"In every setting: {' · '.join(self.names.common)}." if self.names.common else ""
        return " ".join(filter(None, (common, self.sampled, self.budgets, self.backends)))

    @property
    def budgets(self) -> str:
        """A sentence where methods have had different numbers of rounds; empty where equal ones."""
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
    def backends(self) -> str:
        """A sentence where runs have had several backends or devices; empty where one."""
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
    def longer(self) -> dict[str, str]:
        """By method that had more rounds than most, ``6 + 2 rounds``."""
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
    def sampled(self) -> str:
        """A sentence where models are scored on a sample of the clients; empty where on all."""
        sizes = sorted({len(p.clients) - len(p.unseen) for p in self.partitions.values()})
        counts = summaries.evaluated_clients(self.plan)
        samples = {
            title: " or ".join(
                f"{n:,} of {m:,}" for n in counts.get(method, ()) for m in sizes if n < m
            )
            for method, title in self.methods.items()
        }
        distinct_samples = set(samples.values())
        drawn = ", which each seed draws anew" if self.runs["seed"].nunique() > 1 else ""
        if len(distinct_samples) == 1:
            [sample] = distinct_samples
            return f"Scores are over a sample of {sample} clients{drawn}." if sample else ""
        sizes_by_method = (f"{title} {sample or 'all'}" for title, sample in samples.items())
        return f"Scores are over samples of clients{drawn}: {'; '.join(sizes_by_method)}."

    @cached_property
    def methods(self) -> dict[str, str]:
        """Label -> name to show: the readable title, with the label where titles coincide.

        The user's own method is marked as ``(ours)``.
        """
        titles = dict(zip(self.runs["method"], self.runs["title"], strict=True))
        shown = list(titles.values())
        names = {m: t if shown.count(t) == 1 else f"{t} ({m})" for m, t in titles.items()}
        return {m: f"{t} (ours)" if m == self.plan.ours else t for m, t in names.items()}

    def placed(self, frame: pd.DataFrame) -> pd.DataFrame:
        """``frame`` with the settings as these facts have them."""
        return (
            summaries.without_draws(frame, self.setting_by_scenario) if self.over_draws else frame
        )

    def replicated(self, frame: pd.DataFrame) -> pd.DataFrame:
        """``frame``, which has seeds, `placed`, and in a column ``unit`` what is replicated."""
        if not self.over_draws:
            return frame.assign(unit=frame["seed"])
        units = ["; ".join(setting) for setting in frame[SETTING].itertuples(index=False)]
        return self.placed(frame.assign(unit=units))

    def averaged(
        self, frame: pd.DataFrame, spreads: Mapping[str, str], keys: Sequence[str] = summaries.KEY
    ) -> pd.DataFrame:
        """`fl.report.summaries.over_draws` where a setting is all its draws, else ``frame``."""
        if not self.over_draws:
            return frame
        return summaries.over_draws(frame, self.setting_by_scenario, spreads, keys)

    def summarised(self, metric: str, split: str = "test") -> pd.DataFrame:
        """`fl.report.summaries.summarise` of a metric; over draws if settings are."""
        summary = summaries.summarise(self.rows, self.runs, metric, split)
        return self.averaged(summary, {"mean": "sd_seeds", "weighted": "weighted_sd_seeds"})

    @cached_property
    def summary(self) -> pd.DataFrame:
        """The summary of the study's metric, see `summarised`."""
        return self.summarised(self.metric)

    @cached_property
    def claims(self) -> pd.DataFrame:
        """`fl.report.claims.compared` of the study's metric."""
        scored = summaries.complete(summaries.final(self.rows, "accuracy"), self.runs)
        return claims.compared(
            self.rows,
            self.runs,
            self.metric,
            self.plan.baseline,
            self.plan.contrasts,
            settings=self.setting_by_scenario,
            floors=majority.errors(
                scored, self.runs, self.partitions, all_samples=self.uses_all_test_samples
            ),
        )

    @cached_property
    def unseen_summary(self) -> pd.DataFrame:
        """The summary of the clients that were held out of training; NaN if there are none."""
        return self.summarised(self.metric, UNSEEN)

    @cached_property
    def honest(self) -> Facts | None:
        """Return these facts without clients that attack in any run of their setting and seed.

        None if no client is known to attack. Of runs that do not tell, no client is left.
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
        """The rows of clients with one ``modality``, or of one ``domain``."""
        chosen: pd.DataFrame = rows[self.traits(rows, trait) == value]
        return chosen

    def traits(self, rows: pd.DataFrame, trait: str) -> pd.Series:
        """By row, the ``modality`` or ``domain`` of its client; None where it is not known."""
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
                    setting=self.short(setting),
                    seed=row["seed"],
                    anchor=self.anchor(setting, row["method"]),
                )
            )
        return runs

    def anchor(self, setting: StudySetting, method: str) -> str:
        """The link to the runs behind a cell; "" for what is no setting of the study, or many."""
        if self.over_draws or setting not in self.settings:
            return ""
        return f"#runs-{self.settings.index(setting) + 1}-{list(self.methods).index(method) + 1}"

    def partitions_of(self, setting: StudySetting) -> list[Partition]:
        """The partitions, one unless seeds or draws have their own, that a setting's runs use."""
        runs = self.placed(self.runs.drop_duplicates([*SETTING, "partition_id"]))
        names = at(runs, setting)["partition_id"].unique()
        return [self.partitions[name] for name in names if name in self.partitions]

    def majority(self, setting: StudySetting) -> pd.Series:
        """Per client, what predicting its training majority scores; mean over seeds' partitions."""
        majorities = [p.majority(self.uses_all_test_samples) for p in self.partitions_of(setting)]
        return (
            pd.concat(majorities).groupby(level=0).mean() if majorities else pd.Series(dtype=float)
        )

    def population(self, setting: StudySetting) -> float:
        """The score of predicting the training majority of all clients, mean over clients."""
        together = self.uses_all_test_samples
        majorities = [p.majority(together, True).mean() for p in self.partitions_of(setting)]
        return sum(majorities) / len(majorities) if majorities else float("nan")

    def short(self, setting: StudySetting) -> str:
        """A setting in one line, without what all settings share."""
        return " · ".join(self.names.distinct.get(setting, setting))


def _span(counts: pd.Series) -> str:
    """Return ``20``, or ``12 to 20`` if counts differ; a count that is not known is ``unknown``."""
    if counts.isna().any():
        return "unknown"
    first, last = int(counts.min()), int(counts.max())
    return f"{first} to {last}" if last > first else str(first)


def _rounds(runs: pd.DataFrame) -> str:
    """Return the rounds of a method's runs: ``6``, or ``6 + 2`` after those of a stored model."""
    own, start = _span(runs["rounds"]), _span(runs["rounds_before"])
    return own if start == "0" else f"{start} + {own}"


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
    analyses = tuple(analysis_section.read(results, analysis) for analysis in plan.analyses)
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


def at(frame: pd.DataFrame, setting: StudySetting) -> pd.DataFrame:
    """The rows of ``frame`` that belong to a setting."""
    return frame[(frame[SETTING] == list(setting)).all(axis=1)]


def read_plan(study: str, results: Path) -> StudyPlan:
    """A study as it was planned last; `DataError` where it was not or cannot be read."""
    folder = results / "plan" / "studies"
    if not (folder / f"{study}.json").exists():
        names = sorted(path.stem for path in folder.glob("*.json"))
        raise DataError(
            f"{folder / study}.json: not there; planned studies: {', '.join(names) or 'none'}; "
            "`fedloom plan --write` makes the plan"
        )
    return plan_files.read_study(results / "plan", study)


ENVIRONMENT = ("fedloom", "python", "torch", "numpy", "cuda", "processor", "device")
"""The columns that say what a run was computed with."""


def _versions(runs: pd.DataFrame) -> tuple[str, ...]:
    """The distinct environments that the runs were computed in."""
    texts = set()
    for row in runs[[*ENVIRONMENT]].drop_duplicates().to_dict("records"):
        words = (f"{name} {value}" for name, value in row.items() if isinstance(value, str))
        texts.add(", ".join(words))
    return tuple(sorted(texts - {""}))


def _shown(results: Path, store: Path) -> str:
    """The store's path as a report shows it: relative to the project where it lies inside."""
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
