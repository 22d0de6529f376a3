"""The results of a study: its table, its curves, and the models behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fl import report
from fl.base.errors import FedloomError, Location, unknown_name
from fl.base.schema import COMPLETE, GLOBAL, PERSONAL, SETTING
from fl.notebook.plainly import plainly
from fl.plan.bundle import Bundle, Member
from fl.plan.config import Settings
from fl.report import result_files
from fl.store.layout import PREDICTIONS
from fl.store.store import Store

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fl.notebook.stored import Stored


@dataclass(frozen=True, repr=False)
class Result:
    """What `fl.run` and `fl.load` give: a study's results, as far as its runs are there.

    Where a study has several data sets, partitions or models, name the one that is meant by
    ``dataset=``, ``partition=`` and ``model=``, as `table` writes them. Of a grid, models and
    predictions are those of the point that validation data chose.
    """

    study: Mapping[str, Any]
    bundles: Mapping[str, Bundle]
    settings: Settings
    _opened: dict[str, Stored] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = self.runs().drop_duplicates("run")["state"].value_counts()
        states = ", ".join(f"{count} {state}" for state, count in counts.items())
        return f"<fl.Result of {self.study['study']}: {states}>"

    @plainly
    def table(self, metric: str | None = None, unseen: bool = False) -> pd.DataFrame:
        """The main table, see `fl.report.load`: a row for each setting and method."""
        return report.load(self.study, self._results, self._store.root, metric, unseen)

    @plainly
    def curves(self, unseen: bool = False) -> pd.DataFrame:
        """A row for each method, seed, round, client and metric, see `fl.report.curves`."""
        return report.curves(self.study, self._results, self._store.root, unseen)

    @plainly
    def runs(self) -> pd.DataFrame:
        """A row for each planned run: its id, state, seconds and costs (`fl.report.tables`)."""
        return result_files.read(self.study, self._store.root, self._results)[1]

    @plainly
    def report(self) -> Path:
        """Write the report, as ``fedloom report`` does; the path of its page."""
        page, *_ = report.build(self.study["study"], self._results, self._store.root, self.study)
        return page

    @plainly
    def model(
        self,
        method: str,
        client: int | None = None,
        seed: int | None = None,
        stage: str | None = None,
        **setting: str,
    ) -> nn.Module:
        """The final model of a run, in evaluation mode, on the CPU.

        A method that predicts in another way than by its network (kNN-Per) does so in
        `predictions`.

        Args:
            method: What the study calls the entry.
            client: Whose model; needed where clients have models of their own.
            seed: By default the lowest one.
            stage: ``global`` or ``personal``; by default the one that the table shows.

        Raises:
            FedloomError: If there is no such model, or if its weights were not kept.
        """
        stored = self._stored(self._chosen(method, seed, setting)[0])
        return stored.module(stage or stored.stage, client)

    @plainly
    def inputs(
        self,
        method: str,
        client: int,
        seed: int | None = None,
        split: str = "test",
        **setting: str,
    ) -> tuple[Any, Tensor]:
        """A client's samples as the run's models want them, normalised.

        Args:
            split: ``train``, ``val``, ``test``, or ``unseen`` for clients held out of training.

        Returns:
            Inputs [samples, ...], or a dict of them where samples have several; labels [samples].
        """
        return self._stored(self._chosen(method, seed, setting)[0]).inputs(client, split)

    @plainly
    def predictions(
        self,
        method: str,
        split: str = "test",
        stage: str | None = None,
        seed: int | None = None,
        **setting: str,
    ) -> pd.DataFrame:
        """What the final models of a method predict for every sample of a split.

        Of a run whose weights were not kept it is read from ``predictions.parquet``, if there is
        one (`keep_predictions`); it has no predictions for training samples.

        Args:
            method: What the study calls the entry.
            split: ``train``, ``val``, ``test``, or ``unseen`` for clients held out of training.
            stage: ``global`` or ``personal``; by default the one that the table shows.
            seed: One of them; by default all.

        Returns:
            The columns ``seed``, ``client``, ``sample``, ``label`` and ``predicted`` (numbers of
            classes), and for each class ``score_<number>``, its softmax. Samples are numbered from
            0 in what was read; rows that ``missing: drop`` leaves out of a table have no number.
        """
        tables = []
        for run in self._chosen(method, seed, setting, every=True):
            if self._store.has(run, (PREDICTIONS,)) and not self._store.has_weights(run):
                table = _kept(self._store, run, stage, split)
            else:
                stored = self._stored(run)
                table = stored.predictions(stage or stored.stage, split)
            table.insert(0, "seed", self._planned(run)[1].seed)
            tables.append(table)
        return pd.concat(tables, ignore_index=True)

    @plainly
    def confusion(
        self,
        method: str,
        split: str = "test",
        stage: str | None = None,
        seed: int | None = None,
        **setting: str,
    ) -> pd.DataFrame:
        """How many samples of each class (rows) are predicted as each class (columns), by name.

        Counts are sums over clients and seeds. Arguments are those of `predictions`.
        """
        from fl.notebook.stored import classes_of

        seen = self.predictions(method, split, stage, seed, **setting)
        classes = classes_of(*self._planned(self._chosen(method, seed, setting)[0]))
        numbers = range(len(classes))
        counts = pd.crosstab(seen["label"], seen["predicted"])
        counts = counts.reindex(index=numbers, columns=numbers, fill_value=0)
        counts.index = pd.Index(classes, name="label")
        counts.columns = pd.Index(classes, name="predicted")
        return counts

    @property
    def _results(self) -> Path:
        return Path(self.settings.results)

    @property
    def _store(self) -> Store:
        return Store(Path(self.settings.store))

    def _chosen(
        self, method: str, seed: int | None, setting: Mapping[str, str], every: bool = False
    ) -> list[str]:
        """The complete runs of an entry at its selected point: one of a seed, or of every seed."""
        location, runs = Location(f"the study {self.study['study']}"), self.runs()
        for key, value in {**setting, "method": method}.items():
            if key not in (*SETTING, "method"):
                raise unknown_name(location, "argument", key, SETTING)
            if value not in set(runs[key]):
                raise unknown_name(location, key, value, set(runs[key]))
            runs = runs[runs[key] == value]
        several = [key for key in SETTING if runs[key].nunique() > 1]
        if several:
            known = "; ".join(f"{key}= one of {', '.join(runs[key].unique())}" for key in several)
            raise FedloomError(f"{location}: {method!r} ran in several settings. Allowed: {known}")
        chosen = runs[runs["selected"] & (runs["state"] == COMPLETE)].sort_values("seed")
        if seed is not None:
            chosen = chosen[chosen["seed"] == seed]
        if chosen.empty:
            known = ", ".join(map(str, sorted(runs["seed"].unique())))
            of_seed = "" if seed is None else f" of seed {seed}"
            raise FedloomError(
                f"{location}: there is no complete run of {method!r}{of_seed}; its seeds: {known}"
            )
        return list(chosen["run"][: None if every else 1])

    def _stored(self, run: str) -> Stored:
        from fl.notebook.stored import Stored

        if run not in self._opened:
            bundle, member = self._planned(run)
            # One at a time, as each holds its data; seeds of a bundle share them.
            like = next((s for s in self._opened.values() if s.bundle is bundle), None)
            self._opened.clear()
            self._opened[run] = Stored.open(bundle, member, self._store, like)
        return self._opened[run]

    def _planned(self, run: str) -> tuple[Bundle, Member]:
        return next(
            (bundle, member)
            for bundle in self.bundles.values()
            for member in bundle.runs
            if member.run == run
        )


def _kept(store: Store, run: str, stage: str | None, split: str) -> pd.DataFrame:
    """The predictions that a run has kept, of a stage and a split."""
    seen, location = store.predictions(run), Location(str(store.folder(run)))
    stages = set(seen["stage"])
    shown = stage or (PERSONAL if PERSONAL in stages else GLOBAL)
    for name, wanted in (("stage", shown), ("split", split)):
        if wanted not in set(seen[name]):
            raise unknown_name(location, name, wanted, set(seen[name]))
    chosen = seen[(seen["stage"] == shown) & (seen["split"] == split)]
    return chosen.drop(columns=["stage", "split"]).reset_index(drop=True)
