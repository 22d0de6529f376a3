"""Results of a study: table, curves, models and predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fl import report
from fl.base.errors import ConfigError, FedloomError, Location, unknown_name
from fl.base.schema import COMPLETE, GLOBAL, PERSONAL, SETTING
from fl.notebook.display import Page, WideTable, name_arguments, short_traceback, warn
from fl.plan import result_paths
from fl.plan.bundle import Bundle, Run
from fl.plan.config import Settings
from fl.plan.study_plan import StudyPlan
from fl.report import latex, page, paper_table, plots, result_files, result_lines
from fl.report.cells import Table
from fl.report.claims import COMPARISON_COLUMNS
from fl.report.cost_tables import overview
from fl.report.facts import Facts, gather
from fl.report.outline import blocks, outline
from fl.store.run_record import PREDICTIONS
from fl.store.store import Store

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from torch import Tensor

    from fl.notebook.model import Model
    from fl.notebook.stored import StoredModels


@dataclass(frozen=True, repr=False)
class Result:
    """Results of a study from its stored runs, returned by `fl.run` and `fl.load`.

    A notebook shows it as the report's main table, with what the methods cost. Printed, it is a
    short table, which differences are significant, and the folder of its runs.

    If a study has several data sets, partitions or models, choose one by ``dataset=``,
    ``partition=`` and ``model=``, with the names in `draws`. Models and predictions of a grid are
    those of the point that was chosen on validation data.

    Attributes:
        study: Plan of the study.
        bundles: Bundles of its runs.
        settings: Settings of the config.
    """

    study: StudyPlan
    bundles: Mapping[str, Bundle]
    settings: Settings
    _opened: dict[str, StoredModels] = field(default_factory=dict)

    def __repr__(self) -> str:
        lines = map(name_arguments, result_lines.results(self._facts()))
        return "\n".join([*lines, f"folder of runs: {self._store.root}"])

    def _repr_html_(self) -> str:
        """Return the report's main table, with what the methods cost."""
        facts = self._facts()
        return name_arguments(page.table_html(overview(facts), page.title_of_own_method(facts)))

    @short_traceback
    def table(self, metric: str | None = None, unseen: bool = False) -> pd.DataFrame:
        """Return the means of the report's main table, a row for each setting and method.

        Means are over draws if a setting has several; `draws` has a row for each. Columns and
        arguments are those of `fl.report.load`. Data sets, partitions and models have their titles
        where the study gives them.
        """
        return self._titled(
            report.load(self.study, self._results, self._store.root, metric, unseen)
        )

    @short_traceback
    def draws(self, metric: str | None = None, unseen: bool = False) -> pd.DataFrame:
        """Return a row for each setting, draw and method; see `fl.report.draws`."""
        return self._titled(
            report.draws(self.study, self._results, self._store.root, metric, unseen)
        )

    @short_traceback
    def tests(self, unseen: bool = False) -> pd.DataFrame:
        """Return a row for each comparison of two methods in a setting, as the report tests them.

        Each method is compared with the study's ``baseline``, and with another method if
        ``contrasts`` says so; without a baseline, all pairs are compared. What may be claimed, and
        which comparisons are corrected together, is in ``docs/guide/analyse.md``.

        Args:
            unseen: Whether values are of the clients that were held out of training.

        Returns:
            The columns ``dataset``, ``partition``, ``model``; ``method`` and ``other``;
            ``difference``, the mean of ``method`` minus that of ``other`` over ``n`` draws or seeds
            (``unit``), with its 95 % bounds ``low`` and ``high`` (NaN below six draws or seeds);
            ``better`` and ``worse``, shares of clients; ``p``, ``p_corrected`` and ``p_equal``
            (within one point); ``verdict``, and ``reason`` if it is uninformative. Shares are
            fractions of one. NaN: not tested.
        """
        facts = self._facts()
        facts = facts.merged_draws or facts
        table = facts.unseen_claims if unseen else facts.claims
        return self._titled(table[[name for name in COMPARISON_COLUMNS if name != "differences"]])

    @short_traceback
    def curves(self, unseen: bool = False) -> pd.DataFrame:
        """Return a row for each method, seed, round, client and metric; see `fl.report.curves`."""
        return report.curves(self.study, self._results, self._store.root, unseen)

    @short_traceback
    def runs(self) -> pd.DataFrame:
        """Return a row for each planned run: id, state, seconds, costs (`fl.report.tables`)."""
        return result_files.read(self.study, self._store.root, self._results)[1]

    @short_traceback
    def report(self) -> Path:
        """Write the report, like ``fedloom report``; return its path, a page in a notebook.

        A warning tells if it replaces the report of another call of the same name.
        """
        name, results = self.study.study, self._results
        if result_paths.page_problem(results, name, self.study.hash) == "out of date":
            page_path = result_paths.page(results, name)
            warn(
                f"{page_path}: was the report of another study {name!r}, or of an earlier version "
                "of this one, and is replaced. Try: fl.run(name=...), a name for each report"
            )
        path, *_ = report.build(self.study.study, self._results, self._store.root, self.study)
        return Page(path)

    @short_traceback
    def plot(
        self,
        kind: plots.Kind = "curves",
        axes: Axes | None = None,
        *,
        methods: paper_table.Names = None,
        metrics: paper_table.Names = None,
        settings: paper_table.Names = None,
        **setting: str,
    ) -> Axes | np.ndarray:
        """Draw a figure of the report with matplotlib; return its axes.

        Means are over draws if the study has several. Of several settings, each has axes of its
        own.

        Args:
            kind: ``curves`` over rounds, final values of all ``clients``, or values against their
                ``cost``: bytes of all clients in a run, and in the runs that it starts from. The
                value of a method that sends nothing is a line. For many methods: ``intervals`` of
                their means, sorted; ``settings``, a map of differences from the baseline;
                ``ranks``, a critical-difference diagram over at least five settings or draws.
            axes: Axes to draw on; by default those of a new figure.
            methods: Entries, as in `to_latex`. Verdicts stay those among all entries.
            metrics: Metrics, as in `to_latex`, each with axes of its own.
            settings: Settings, as in `to_latex`.
            setting: ``dataset``, ``partition`` and ``model``, without the seeds of draws, to draw
                one of several settings.

        Raises:
            FedloomError: For an unknown kind or setting, and if no run is complete.
        """
        study, location = self._facts(), Location(f"the study {self.study.study}")
        facts = study.merged_draws or study
        shown_methods, shown_metrics, shown = paper_table.chosen(facts, methods, metrics, settings)
        for key, value in setting.items():
            if key not in SETTING:
                raise unknown_name(location, "argument", key, SETTING)
            place, value = SETTING.index(key), self._text(key, value)
            known = {names[place] for names in shown}
            value = next((text for text in known if name_arguments(text) == value), value)
            if value not in known:
                raise unknown_name(location, key, value, known)
            shown = [names for names in shown if names[place] == value]
        return plots.plot(facts, kind, shown, axes, shown_methods, shown_metrics)

    @short_traceback
    def to_latex(
        self,
        table: str | None = None,
        *,
        methods: paper_table.Names = None,
        metrics: paper_table.Names = None,
        settings: paper_table.Names = None,
        best: paper_table.Best | None = "significant",
        siunitx: bool = False,
    ) -> str:
        """Return a table for a paper in LaTeX, with a caption that says what is in bold and why.

        Comments above it name the point of each method with a grid that validation data chose.

        Args:
            table: Name of a table of the report, to have it as it is there: ``settings`` or
                ``draws`` (the main table), ``costs``, ``differences``, ...
            methods: Names or titles of entries, in the order of the rows; by default all.
            metrics: Metrics on test samples, by default the study's.
            settings: Names of settings as the tables have them, or data sets, partitions and
                models, each for all settings that have it; by default all.
            best: What is in bold. ``significant``: the entries that no other is ahead of by the
                study's own test; if it has a baseline, with which alone entries are compared, those
                ahead of it. ``mean``: the best mean of each setting. None: nothing.
            siunitx: Whether numbers stand in columns ``S`` of siunitx.

        Raises:
            FedloomError: For a name that the study does not have.
        """
        facts = self._facts()
        chosen = self._table(facts, table, methods, metrics, settings, best)
        points = [] if table else paper_table.point_lines(facts, methods, settings)
        comments = "".join(f"% chosen on validation data: {line}\n" for line in points)
        return comments + latex.documents(facts, [chosen], siunitx)[chosen.name]

    @short_traceback
    def to_markdown(
        self,
        table: str | None = None,
        *,
        methods: paper_table.Names = None,
        metrics: paper_table.Names = None,
        settings: paper_table.Names = None,
        best: paper_table.Best | None = "significant",
    ) -> str:
        """Return a table for a page in Markdown; for arguments and errors see `to_latex`."""
        chosen = self._table(self._facts(), table, methods, metrics, settings, best)
        return page.to_markdown(replace(chosen, number=""))

    @short_traceback
    def to_frame(
        self,
        *,
        methods: paper_table.Names = None,
        metrics: paper_table.Names = None,
        settings: paper_table.Names = None,
        best: paper_table.Best | None = "significant",
    ) -> pd.DataFrame:
        """Return the values of such a table; for arguments and errors see `to_latex`.

        Returns:
            A row for each setting, method and metric: ``dataset``, ``partition``, ``model``,
            ``method``, ``title``, ``metric``; ``mean`` and ``sd`` over ``n`` draws or seeds, shares
            as fractions of one; ``best``, whether it is in bold. ``attrs["caption"]`` is the
            caption.
        """
        facts = self._facts()
        frame = paper_table.values(facts, methods, metrics, settings, best)
        caption = paper_table.table(facts, frame, best).caption
        frame = self._titled(frame)
        frame.attrs["caption"] = name_arguments(caption)
        return frame

    def _table(self, facts: Facts, name: str | None, *choices: Any) -> Table:
        """Return the table of the report with that name, or the one that a user composed."""
        if name is None:
            return paper_table.table(facts, paper_table.values(facts, *choices), choices[-1])
        place = Location(f"the study {self.study.study}")
        if choices != (None, None, None, "significant"):
            problem = "is a table of the report, from which nothing can be chosen"
            advice = "leave the name of the table out, or methods=, metrics=, settings= and best="
            raise ConfigError(place / repr(name), problem, advice=advice)
        tables = {b.name: b for b in blocks(outline(facts)) if isinstance(b, Table)}
        if name not in tables:
            raise unknown_name(place, "table", name, tables)
        return tables[name]

    def _titled(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table with the titles of data sets, partitions and models."""
        for kind, titles in self.study.titles.items():
            table = table.assign(**{kind: table[kind].replace(titles)})
        return WideTable(table)

    def _facts(self) -> Facts:
        """Return what the report is made from; nothing is written."""
        return gather(self.study.study, self._results, self._store.root, self.study, False)

    @short_traceback
    def model(
        self,
        method: str,
        client: int | str | None = None,
        seed: int | None = None,
        stage: str | None = None,
        **setting: str,
    ) -> Model:
        """Return the final model of a run, which predicts from raw inputs and can be saved.

        As a module of PyTorch, in evaluation mode and on the CPU, it takes `inputs`; its ``module``
        is the network. Methods with a prediction rule of their own (kNN-Per) apply it in
        ``predict``, and not in the module.

        Args:
            method: Name of the entry in the study.
            client: Client of the model, by its number, or by its name if the data set has names;
                required if clients have models of their own.
            seed: Seed of the run; by default the lowest one.
            stage: ``global`` or ``personal``; by default the stage that the table shows.
            setting: ``dataset``, ``partition`` and ``model``, if the study has several.

        Raises:
            FedloomError: If there is no such model, or its weights are not stored.
        """
        models = self._models(self._selected_runs(method, seed, setting)[0])
        return models.model(stage or models.stage, client)

    @short_traceback
    def inputs(
        self,
        method: str,
        client: int,
        seed: int | None = None,
        split: str = "test",
        **setting: str,
    ) -> tuple[Any, Tensor]:
        """Return a client's samples as inputs of the run's models, normalised.

        Args:
            method: Name of the entry in the study.
            client: The client.
            seed: Seed of the run; by default the lowest one.
            split: ``train``, ``val``, ``test``, or ``unseen`` for clients held out of training.
            setting: ``dataset``, ``partition`` and ``model``, if the study has several.

        Returns:
            Inputs [samples, ...], or a dictionary of them if samples have several inputs, and
            labels [samples]; targets are standardised.
        """
        return self._models(self._selected_runs(method, seed, setting)[0]).inputs(client, split)

    @short_traceback
    def predictions(
        self,
        method: str,
        split: str = "test",
        stage: str | None = None,
        seed: int | None = None,
        **setting: str,
    ) -> pd.DataFrame:
        """Return predictions of a method's final models for every sample of a split.

        For a run without stored weights, they are read from ``predictions.parquet``, if it exists
        (`keep_predictions`); that file has no training samples.

        Args:
            method: Name of the entry in the study.
            split: ``train``, ``val``, ``test``, or ``unseen`` for clients held out of training.
            stage: ``global`` or ``personal``; by default the stage that the table shows.
            seed: Seed of a run; by default all seeds.
            setting: ``dataset``, ``partition`` and ``model``, if the study has several.

        Returns:
            The columns ``seed``, ``client``, ``sample``, ``group`` (if the data set has groups),
            ``label`` and ``predicted`` (numbers of classes), and for each class
            ``score_<number>``, its softmax; with targets, ``target`` and ``predicted`` in the
            target's unit. Samples are numbered from 0 in their order in the data
            set; rows that ``missing: drop`` leaves out have no number.
        """
        tables = []
        for run in self._selected_runs(method, seed, setting, all_seeds=True):
            if self._store.has(run, (PREDICTIONS,)) and not self._store.has_weights(run):
                table = _stored_predictions(self._store, run, stage, split)
            else:
                models = self._models(run)
                table = models.predictions(stage or models.stage, split)
            table.insert(0, "seed", self._planned(run)[1].seed)
            tables.append(table)
        return pd.concat(tables, ignore_index=True)

    @short_traceback
    def confusion(
        self,
        method: str,
        split: str = "test",
        stage: str | None = None,
        seed: int | None = None,
        **setting: str,
    ) -> pd.DataFrame:
        """Return the number of samples by class (rows) and predicted class (columns).

        Counts are sums over clients and seeds.

        Args:
            method: Name of the entry in the study.
            split: See `predictions`.
            stage: See `predictions`.
            seed: See `predictions`.
            setting: See `predictions`.
        """
        from fl.notebook.stored import classes_of

        table = self.predictions(method, split, stage, seed, **setting)
        if "label" not in table:
            problem = f"the study {self.study.study}: has targets, and confusion is of classes"
            raise FedloomError(problem, advice="use predictions")
        classes = classes_of(*self._planned(self._selected_runs(method, seed, setting)[0]))
        numbers = range(len(classes))
        counts = pd.crosstab(table["label"], table["predicted"])
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

    def _selected_runs(
        self, method: str, seed: int | None, setting: Mapping[str, str], all_seeds: bool = False
    ) -> list[str]:
        """Return the complete run of an entry at its chosen point, or its runs of all seeds."""
        location, runs = Location(f"the study {self.study.study}"), self.runs()
        for key, value in {**setting, "method": method}.items():
            if key not in (*SETTING, "method"):
                raise unknown_name(location, "argument", key, SETTING)
            text = self._text(key, value)
            if text not in set(runs[key]):
                raise unknown_name(location, key, value, set(runs[key]))
            runs = runs[runs[key] == text]
        # With `seeds: per-draw` a seed names a draw.
        of_seed = runs if seed is None else runs[runs["seed"] == seed]
        if len(of_seed):
            runs = of_seed
        ambiguous = [key for key in SETTING if runs[key].nunique() > 1]
        if ambiguous:
            values = "; ".join(f"{key}: {', '.join(runs[key].unique())}" for key in ambiguous)
            raise FedloomError(
                f"{location}: {method!r} has runs in several settings",
                values,
                f"give {', '.join(f'{key}=' for key in ambiguous)}",
            )
        selected = runs[runs["selected"] & (runs["state"] == COMPLETE)].sort_values("seed")
        if seed is not None:
            selected = selected[selected["seed"] == seed]
        if selected.empty:
            seeds = ", ".join(map(str, sorted(runs["seed"].unique())))
            text = "" if seed is None else f" with seed {seed}"
            raise FedloomError(
                f"{location}: has no complete run of {method!r}{text} (planned seeds: {seeds})"
            )
        return list(selected["run"][: None if all_seeds else 1])

    def _text(self, kind: str, name: str) -> str:
        """Return a data set, partition or model as the study writes it, by its title or text."""
        text_by_title = {title: text for text, title in self.study.titles.get(kind, {}).items()}
        texts = {name_arguments(getattr(run, kind)): getattr(run, kind) for run in self.study.runs}
        return text_by_title.get(name) or str(texts.get(name, name))

    def _models(self, run: str) -> StoredModels:
        from fl.notebook.stored import StoredModels

        if run not in self._opened:
            bundle, member = self._planned(run)
            # Only one run is open, because each holds its data; runs of a bundle share them.
            sibling = next((s for s in self._opened.values() if s.bundle is bundle), None)
            self._opened.clear()
            self._opened[run] = StoredModels.open(bundle, member, self._store, sibling)
        return self._opened[run]

    def _planned(self, run: str) -> tuple[Bundle, Run]:
        return next(
            (bundle, member)
            for bundle in self.bundles.values()
            for member in bundle.runs
            if member.run == run
        )


def _stored_predictions(store: Store, run: str, stage: str | None, split: str) -> pd.DataFrame:
    """Return the stored predictions of a run for a stage and a split."""
    table, location = store.predictions(run), Location(str(store.folder(run)))
    stages = set(table["stage"])
    table_stage = stage or (PERSONAL if PERSONAL in stages else GLOBAL)
    for name, value in (("stage", table_stage), ("split", split)):
        if value not in set(table[name]):
            raise unknown_name(location, name, value, set(table[name]))
    rows = table[(table["stage"] == table_stage) & (table["split"] == split)]
    return rows.drop(columns=["stage", "split"]).reset_index(drop=True)
