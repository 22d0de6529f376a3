"""What a report is made from: a study's plan, its tables, its partitions, its versions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fl.base.errors import ConfigError, DataError, Where
from fl.base.files import parse_json
from fl.base.schema import SETTING, UNSEEN, StudySetting
from fl.plan.plan_check import check_study
from fl.report import analyses, result_files, summaries
from fl.report.analyses import Analysis
from fl.report.names import Names, names
from fl.report.partitions import Partition, read
from fl.store.store import Store


@dataclass(frozen=True)
class Facts:
    """A study as a report sees it."""

    plan: Mapping[str, Any]
    rows: pd.DataFrame
    runs: pd.DataFrame
    partitions: dict[str, Partition]
    versions: tuple[str, ...]
    store: str
    analyses: tuple[Analysis, ...] = ()

    @property
    def metric(self) -> str:
        """The study's metric."""
        return str(self.plan["metric"])

    @property
    def together(self) -> bool:
        """Whether every client's model is scored on the test samples of all clients."""
        return self.plan.get("test") == "global"

    @property
    def when(self) -> str:
        """A sentence for captions where another round than the last counts."""
        if self.plan.get("scored") != "best":
            return ""
        return " Final: of each client, the round that is best on its own validation samples."

    @cached_property
    def settings(self) -> list[StudySetting]:
        """The settings in the plan's order."""
        frame = self.runs[SETTING].drop_duplicates()
        return list(frame.itertuples(index=False, name=None))

    @cached_property
    def names(self) -> Names:
        """What the settings are called."""
        return names(self.settings, self.plan.get("titles") or {})

    @property
    def everywhere(self) -> str:
        """A sentence on what all settings share; empty where there is nothing."""
        return f"In every setting: {' · '.join(self.names.common)}." if self.names.common else ""

    @cached_property
    def methods(self) -> dict[str, str]:
        """Label -> name to show: the readable title, with the label where titles coincide."""
        titles = dict(zip(self.runs["method"], self.runs["title"], strict=True))
        shown = list(titles.values())
        return {m: t if shown.count(t) == 1 else f"{t} ({m})" for m, t in titles.items()}

    @cached_property
    def summary(self) -> pd.DataFrame:
        """`fl.report.summaries.summarise` of the study's metric."""
        return summaries.summarise(self.rows, self.runs, self.metric)

    @cached_property
    def unseen_summary(self) -> pd.DataFrame:
        """The same of the clients that were held out of training; NaN where there are none."""
        return summaries.summarise(self.rows, self.runs, self.metric, UNSEEN)

    def summary_of(self, modality: int) -> pd.DataFrame:
        """The summary over the clients of one modality alone."""
        held = [
            (run, client)
            for run, partition in zip(self.runs["run"], self.runs["partition_id"], strict=True)
            if partition in self.partitions
            for client, kind in enumerate(self.partitions[partition].modality)
            if kind == modality
        ]
        chosen = pd.MultiIndex.from_tuples(held, names=["run", "client"])
        rows = self.rows[pd.MultiIndex.from_frame(self.rows[["run", "client"]]).isin(chosen)]
        return summaries.summarise(rows, self.runs, self.metric)

    def anchor(self, setting: StudySetting, method: str) -> str:
        """The id of the block of runs behind a cell."""
        return f"runs-{self.settings.index(setting) + 1}-{list(self.methods).index(method) + 1}"

    def partitions_of(self, setting: StudySetting) -> list[Partition]:
        """The partitions, one unless seeds differ in theirs, that a setting's runs use."""
        same = (self.runs[SETTING] == list(setting)).all(axis=1)
        names = self.runs.loc[same, "partition_id"].unique()
        return [self.partitions[name] for name in names if name in self.partitions]

    def short(self, setting: StudySetting) -> str:
        """A setting in one line, without what all settings share."""
        return " · ".join(self.names.own.get(setting, setting))


def gather(study: str, results: Path, store: Path, plan: Mapping[str, Any] | None = None) -> Facts:
    """Read a study; its tables are made again unless they are complete and of the same plan."""
    plan = plan or read_plan(study, results)
    both = result_files.there(plan, results)
    rows, runs = both or result_files.write(plan, store, results)
    found, called = {}, plan.get("titles") or {}
    for row in runs.drop_duplicates("partition_id").to_dict("records"):
        title = " · ".join(called.get(k, {}).get(row[k], row[k]) for k in SETTING[:2])
        part = read(results, row["partition_id"], title)
        if part is not None:
            found[row["partition_id"]] = part
    analysed = tuple(analyses.read(results, one) for one in plan.get("analyses", ()))
    versions, shown = _versions(runs, Store(store)), _shown(results, store)
    return Facts(plan, rows, runs, found, versions, shown, analysed)


def read_plan(study: str, results: Path) -> dict[str, Any]:
    """A study as it was planned last; `DataError` where it was not or cannot be read."""
    path = results / "plan" / "studies" / f"{study}.json"
    try:
        found = parse_json(path.read_bytes())
        check_study(found, Where(str(path)))
        return dict(found)
    except FileNotFoundError as error:
        known = sorted(p.stem for p in path.parent.glob("*.json"))
        raise DataError(
            f"{path}: not there; planned studies: {', '.join(known) or 'none'}; "
            "`python -m fl plan` makes the plan"
        ) from error
    except (OSError, ValueError, ConfigError) as error:
        raise DataError(f"{path}: cannot be read ({error}); remove it and plan again") from error


def _versions(runs: pd.DataFrame, store: Store) -> tuple[str, ...]:
    """The distinct stacks that the runs were computed with."""
    found = set()
    # Tables may be brought without the store; the report then names no versions.
    for run in filter(store.has, runs["run"].unique()):
        versions = store.record(run).get("versions", {})
        names = [n for n in ("fedloom", "torch", "python") if n in versions]
        found.add(", ".join(f"{name} {versions[name]}" for name in names))
    return tuple(sorted(found - {""}))


def _shown(results: Path, store: Path) -> str:
    """The store's path as a report shows it: relative to the project where it lies inside."""
    relative = os.path.relpath(store, results.absolute().parent)
    return (str(store) if relative.startswith("..") else relative).replace(os.sep, "/")
