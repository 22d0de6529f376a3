"""Training of a track: points are chosen on the tuning clients, then the scored clients are scored.

All runs are those of `fl.run`: what the store has is not trained again, so that a killed call goes
on where it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fl.base.errors import ConfigError, DataError, FedloomWarning
from fl.base.schema import COMPLETE, UNSEEN
from fl.data import partitioning, preparation
from fl.data.partition_table import unseen_clients
from fl.data.prepared import Prepared
from fl.notebook import keys
from fl.notebook.result import Result
from fl.notebook.run import run
from fl.plan import plan, track
from fl.plan.config import read_settings
from fl.plan.track import (
    NEWCOMERS,
    PARTICIPANTS,
    SCORED,
    TUNING,
    Grid,
    Point,
    Role,
    Track,
    TrackStudy,
    Trial,
)
from fl.report import kept_tracks, result_files, summaries
from fl.report.kept_tracks import TrackResults
from fl.report.tables import HYPER

EXTENSIONS = 2
"""Number of times that a grid is extended at an edge."""

DIGITS = 12
"""Digits up to which values of points are compared, so that equal ones are equal."""


class Tuned(NamedTuple):
    """What tuning has found.

    Attributes:
        chosen: The chosen trial by entry and role of clients.
        tried: A row for each trial and draw, `fl.report.kept_tracks.TRIED`.
        values: Values of tuning clients, `fl.report.kept_tracks.TUNING`.
        at_edge: Keys whose chosen value is at an edge of the extended grid, by entry and role.
    """

    chosen: dict[tuple[str, Role], Trial]
    tried: pd.DataFrame
    values: pd.DataFrame
    at_edge: dict[tuple[str, Role], list[str]]


class Runs(NamedTuple):
    """Results of a study of trials.

    Attributes:
        rows: Final values of clients, with the columns of `fl.report.tables`.
        runs: Table of the runs.
        study: The study.
        result: What `fl.run` returned.
    """

    rows: pd.DataFrame
    runs: pd.DataFrame
    study: TrackStudy
    result: Result


@dataclass(frozen=True)
class TrackTraining:
    """Training of entries of a track at one budget.

    Attributes:
        track: The track.
        folder: Config folder, whose ``config.yaml`` has the folders of results and data.
        times: The budget.
        progress: Whether to show a progress bar.
        previous: The tried points of the budget before, if it is not the first.
    """

    track: Track
    folder: Path
    times: int = 1
    progress: bool = False
    previous: pd.DataFrame = field(default_factory=pd.DataFrame)

    def tune(self, entries: Sequence[str]) -> Tuned:
        """Choose the point of entries, and of those from which they start, on the tuning clients.

        The grid of an entry is extended at an edge, twice at most. Of equal points the one nearest
        to the no-op is chosen. The start of an entry is tuned before it, for the same clients.

        Args:
            entries: Names of the entries.
        """
        starts = {self.track.start(name) for name in entries} - {None}
        first = [
            name
            for name in self.track.methods
            if name in starts or (name in entries and self.track.start(name) is None)
        ]
        found = Tuned({}, pd.DataFrame(), pd.DataFrame(), {})
        for names in (first, [name for name in entries if self.track.start(name) is not None]):
            if names:
                found = self._tune(names, found)
        return found

    def plan(self, entries: Sequence[str]) -> int:
        """Check all points of entries in one draw of the tuning clients; nothing is trained.

        Returns:
            The number of runs.

        Raises:
            ConfigError: For what is wrong with an entry, its data or its model.
        """
        first = {
            name: tuple((key, values[0]) for key, values in self._grid(name).items())
            for name in self.track.methods
        }
        trials = [
            Trial(name, point, first.get(self.track.start(name) or "", ()))
            for name in entries
            for point in track.points(self._grid(name))
        ]
        draws = replace(self.track.draws, tuning=self.track.draws.tuning[:1])
        one_draw = replace(self.track, draws=draws)
        study = track.study(one_draw, TUNING, trials, self.times)
        settings = read_settings(self.folder)
        draft, settings = keys.study(study.arguments, settings)
        return len(plan.make(self.folder, {self.track.name: draft}, settings=settings).runs)

    def _tune(self, names: Sequence[str], starts: Tuned) -> Tuned:
        """Choose the points of entries whose starts have theirs."""
        grids = {
            (name, role): self._grid(name) for name in names for role in self.track.roles(name)
        }
        for extension in range(EXTENSIONS + 1):
            trials = [
                Trial(name, point, self._start(name, role, starts))
                for (name, role), grid in grids.items()
                for point in track.points(grid)
            ]
            runs = self._run(TUNING, trials)
            values = self._tuning_values(runs)
            chosen = {
                (name, role): self._best(name, role, values, grid, starts)
                for (name, role), grid in grids.items()
            }
            beyond = {place: self._beyond(grids[place], trial) for place, trial in chosen.items()}
            if extension == EXTENSIONS or not any(beyond.values()):
                break
            for place, extended in beyond.items():
                for key, added in extended.items():
                    grids[place][key] = [*grids[place][key], *added]
        return Tuned(
            starts.chosen | chosen,
            pd.concat([starts.tried, self._tried(values, chosen)], ignore_index=True),
            pd.concat([starts.values, self._client_table(runs)], ignore_index=True),
            starts.at_edge | {place: [*keys] for place, keys in beyond.items()},
        )

    def _grid(self, name: str) -> Grid:
        """Return the grid of an entry: at a larger budget what is next to the point of before."""
        grid = self.track.grid(name, self.times)
        if self.previous.empty:
            return grid
        rows = self.previous[self.previous["entry"] == name]
        if rows.empty:
            problem = f"{self.track.name}: {name} is not trained at the budget before"
            raise DataError(problem, advice="train that budget again, which goes on from its runs")
        factor = self.times / int(rows["budget"].iloc[0])
        narrow: Grid = {}
        for key, values in grid.items():
            column = f"{HYPER}{key}"
            scale = factor if key == "rounds" else 1
            kind = type(values[0])
            numbers = [kind(v * scale) if scale != 1 else kind(v) for v in rows[column]]
            ordered = sorted({*numbers})
            taken = {
                ordered.index(numbers[i])
                for i, is_chosen in enumerate(rows["chosen"] != "")
                if is_chosen
            }
            near = {i + step for i in taken for step in (-1, 0, 1)}
            no_op = self.track.no_op(name).get(key)
            narrow[key] = [v for i, v in enumerate(ordered) if i in near or v == no_op]
        return narrow

    def _start(self, name: str, role: Role, starts: Tuned) -> Point:
        """Return the point of the start of an entry, chosen for the same clients."""
        start = self.track.start(name)
        return () if start is None else starts.chosen[start, role].point

    def _best(
        self, name: str, role: Role, values: pd.DataFrame, grid: Grid, starts: Tuned
    ) -> Trial:
        """Return the best trial of an entry for some clients.

        Of equal ones it is the nearest to the no-op, then one within the grid. A trial of which a
        draw diverged or is missing is the last.
        """
        trials = [
            Trial(name, point, self._start(name, role, starts)) for point in track.points(grid)
        ]
        means = values.groupby("trial", sort=False)[role].agg(lambda v: v.mean(skipna=False))
        of_trial: dict[Any, float] = means.to_dict()
        places = {key: sorted(vs) if _are_numbers(vs) else [*vs] for key, vs in grid.items()}
        no_op = self.track.no_op(name)

        def order(trial: Trial) -> tuple[float, int, int, tuple[int, ...]]:
            value = round(self.track.sign * of_trial[trial], DIGITS)
            index = {key: places[key].index(v) for key, v in trial.point}
            distance = sum(abs(index[key] - places[key].index(v)) for key, v in no_op.items())
            edges = sum(i in (0, len(places[key]) - 1) for key, i in index.items())
            first = -value if np.isfinite(value) else np.inf
            return first, distance, edges, tuple(index.values())

        return min(trials, key=order)

    def _beyond(self, grid: Grid, trial: Trial) -> Grid:
        """Return values beyond the edges of a grid at which a trial is."""
        found: Grid = {}
        for key, value in trial.point:
            found |= self.track.beyond(trial.entry, key, grid[key], self.times, value)
        return found

    def _run(self, part: str, trials: Sequence[Trial]) -> Runs:
        """Train trials on a part of the pool, as far as the store lacks them."""
        study = track.study(self.track, part, trials, self.times)
        config = self.folder if (self.folder / "config.yaml").exists() else None
        with warnings.catch_warnings():
            # States of runs are kept; the page says what diverged or failed.
            warnings.simplefilter("ignore", FedloomWarning)
            result = run(
                name=f"{self.track.name}-{part}",
                config=config,
                progress=self.progress,
                keep_weights=False,
                **study.arguments,
            )
        store, results = Path(result.settings.store), Path(result.settings.results)
        rows, runs = result_files.read(result.study, store, results)
        if runs.duplicated(["method", "seed"]).any():
            problem = "has a list of values for a key of a term or an alteration"
            advice = "one value; others are of entries of their own"
            raise ConfigError(self.track.location / "methods", problem, advice=advice)
        rows = pd.concat(
            summaries.final_rows(rows, self.track.metric, split)
            for split in ("val", "test", UNSEEN)
        )
        complete = set(runs.loc[runs["state"] == COMPLETE, "run"])
        return Runs(rows[rows["run"].isin(complete)], runs, study, result)

    def _tuning_values(self, runs: Runs) -> pd.DataFrame:
        """Return a row for each trial and draw.

        The columns are ``trial``, ``draw``, ``state``, and by role of clients the mean over
        clients; NaN unless the run is complete.
        """
        by_role = {
            role: values.groupby(level=["method", "seed"]).mean()
            for role, values in self._client_values(runs.rows).items()
        }
        by_label = runs.runs.set_index(["method", "seed"])
        records = [
            {
                "trial": trial,
                "draw": draw,
                "state": by_label.loc[(label, draw), "state"],
                **{role: values.get((label, draw), np.nan) for role, values in by_role.items()},
            }
            for trial, label in runs.study.labels.items()
            for draw in self.track.draws.tuning
        ]
        return pd.DataFrame(records)

    def _client_values(self, rows: pd.DataFrame) -> dict[Role, pd.Series]:
        """Return the values of clients on all their held-out samples, by role of the clients.

        The index of each series is ``method``, ``seed`` and ``client``.
        """
        power = 1 if self.track.sign > 0 else 2  # An RMSE is of the squares of all samples.
        is_newcomer = rows["split"] == UNSEEN
        values: dict[Role, pd.Series] = {}
        for role, own in ((PARTICIPANTS, rows[~is_newcomer]), (NEWCOMERS, rows[is_newcomer])):
            weighted = own.assign(weighted=own["value"] ** power * own["n"])
            sums = weighted.groupby(["method", "seed", "client"])[["weighted", "n"]].sum()
            values[role] = (sums["weighted"] / sums["n"]) ** (1 / power)
        return values

    def _client_table(self, runs: Runs) -> pd.DataFrame:
        """Return the columns of `fl.report.kept_tracks.TUNING` of a study of trials."""
        numbers: dict[str, int] = {}
        about: dict[str, tuple[str, int]] = {}
        for trial, label in runs.study.labels.items():
            about[label] = (trial.entry, numbers.setdefault(trial.entry, 0))
            numbers[trial.entry] += 1
        tables = []
        for role, values in self._client_values(runs.rows).items():
            table = values.rename("value").reset_index().rename(columns={"seed": "draw"})
            table = table[table["method"].isin(about)]
            labels = table.pop("method")
            tables.append(
                table.assign(
                    budget=self.times,
                    entry=labels.map(lambda label: about[label][0]),
                    point=labels.map(lambda label: about[label][1]),
                    clients=role,
                )
            )
        order = ["entry", "point", "clients", "draw", "client"]
        return pd.concat(tables).sort_values(order, ignore_index=True)

    def _tried(
        self, values: pd.DataFrame, chosen: Mapping[tuple[str, Role], Trial]
    ) -> pd.DataFrame:
        """Return the rows of `fl.report.kept_tracks.TRIED` of trials and draws."""
        roles: dict[Trial, list[str]] = {}
        for (_, role), trial in chosen.items():
            roles.setdefault(trial, []).append(role)
        records = [
            {
                "budget": self.times,
                "entry": row["trial"].entry,
                **{f"{HYPER}{key}": value for key, value in row["trial"].point},
                "start": track.point_text(row["trial"].start),
                "draw": row["draw"],
                PARTICIPANTS: row[PARTICIPANTS],
                NEWCOMERS: row[NEWCOMERS],
                "state": row["state"],
                "chosen": " ".join(roles.get(row["trial"], [])),
            }
            for row in values.to_dict("records")
        ]
        return pd.DataFrame(records)

    def score(self, tuned: Tuned, entries: Sequence[str]) -> TrackResults:
        """Train entries at their chosen points on the scored clients; return all that is kept.

        Args:
            tuned: What `tune` has found of them.
            entries: Names of the entries.
        """
        compared = [
            (name, role)
            for name in entries
            for role in self.track.roles(name)
            if name in self.track.entries(role)
        ]
        runs = self._run(SCORED, [tuned.chosen[place] for place in compared])
        clients, floors = self._clients(runs.result)
        tables = [floors]
        for name, role in compared:
            label = runs.study.labels[tuned.chosen[name, role]]
            split = "test" if role == PARTICIPANTS else UNSEEN
            rows = runs.rows[(runs.rows["method"] == label) & (runs.rows["split"] == split)]
            table = rows[["seed", "client", "value"]].rename(columns={"seed": "draw"})
            tables.append(table.assign(entry=name, clients=role))
        values = pd.concat(tables, ignore_index=True).assign(budget=self.times)
        records = [
            record
            for name, role in compared
            for record in self._run_records(runs, tuned, name, role)
        ]
        return kept_tracks.track_results(
            values, clients, pd.DataFrame(records), tuned.tried, tuned.values
        )

    def _run_records(
        self, runs: Runs, tuned: Tuned, name: str, role: Role
    ) -> Iterable[dict[str, Any]]:
        """Yield the rows of `fl.report.kept_tracks.RUNS` of an entry, one for each draw."""
        trial = tuned.chosen[name, role]
        label, start = runs.study.labels[trial], runs.study.starts.get(trial)
        by_label = {(row["method"], row["seed"]): row for row in runs.runs.to_dict("records")}
        for draw in self.track.draws.scored:
            row = by_label[label, draw]
            costs = kept_tracks.costs(row)
            if start is not None:
                of_start = kept_tracks.costs(by_label[start, draw])
                costs = kept_tracks.Costs(*map(sum, zip(costs, of_start, strict=True)))
            yield {
                **{key: row[key] for key in kept_tracks.RUNS if key in row},
                "budget": self.times,
                "entry": name,
                "title": self.track.title_of(name),
                "clients": role,
                "draw": draw,
                "point": track.point_text(trial.point),
                "start": track.point_text(trial.start),
                "no_op": self.track.equalled(trial),
                "at_edge": " ".join(tuned.at_edge.get((name, role), [])),
                **costs._asdict(),
            }

    def _clients(self, result: Result) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the clients of each draw, and what the floor gives them.

        Returns:
            The columns of `fl.report.kept_tracks.CLIENTS`, and those of the values of
            `fl.report.kept_tracks.FLOOR`.
        """
        clients, floors = [], []
        settings, seen = result.settings, set[str]()
        for bundle in result.bundles.values():
            spec, draw = bundle.runs[0].spec, bundle.runs[0].seed
            if bundle.partition in seen:
                continue
            seen.add(bundle.partition)
            policy = preparation.source_policy(spec["dataset"], bundle.sources, bundle.lock)
            data, results = Path(settings.data), Path(settings.results)
            table = partitioning.make_partition(
                spec["partition"], spec["dataset"], data, results, policy
            )
            prepared = preparation.prepare_dataset(spec["dataset"], data, policy)
            names = partitioning.client_names(spec["partition"], spec["dataset"], results)
            of_clients = client_table(table, prepared).assign(name=names or "")
            clients.append(of_clients.assign(draw=draw))
            value = floor(table, prepared, self.track.metric)
            floors.append(of_clients[["client", "clients"]].assign(draw=draw, value=value))
        everything = pd.concat(floors).assign(entry=kept_tracks.FLOOR)
        return pd.concat(clients), everything


def kept_choice(found: Track, results: TrackResults, entries: Iterable[str]) -> Tuned:
    """Return what tuning has chosen for entries at the first budget, by kept results.

    Args:
        found: The track.
        results: Its kept results.
        entries: Names of the entries.
    """
    tried = results.tried[results.tried["budget"] == 1]

    def point(name: str, role: Role) -> Point:
        rows = tried[(tried["entry"] == name) & kept_tracks.is_chosen(tried, role)]
        if rows.empty:
            problem = f"{found.name}: has no kept choice of {name} for {role}"
            raise DataError(problem, advice="`python -m tools.comparison TRACK` trains it")
        row = rows.iloc[0]
        return tuple(
            (key, _value(values, row[f"{HYPER}{key}"])) for key, values in found.grid(name).items()
        )

    chosen = {}
    for name in entries:
        start = found.start(name)
        for role in found.roles(name):
            start_point = point(start, role) if start else ()
            chosen[name, role] = Trial(name, point(name, role), start_point)
    return Tuned(chosen, tried.iloc[:0], results.tuning.iloc[:0], {})


def _value(values: Sequence[Any], kept: Any) -> Any:
    """Return a value as the grid has it, of which a table has kept a number or a text."""
    same = [value for value in values if value == kept or str(value) == str(kept)]
    return same[0] if same else type(values[0])(kept)


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) for value in values)


def client_table(table: pd.DataFrame, prepared: Prepared) -> pd.DataFrame:
    """Return a row for each client of a partition.

    The columns are ``client``, ``origin`` (its number in the pool), ``block`` (that of its first
    sample; -1 without blocks), ``clients`` (its role) and numbers of samples, ``n_train`` and so
    on.
    """
    clients = np.arange(int(table["client"].max()) + 1)
    counts = pd.crosstab(table["client"], table["split"]).reindex(clients, fill_value=0)
    first = table.groupby("client")["sample"].first().reindex(clients)
    is_newcomer = np.isin(clients, unseen_clients(table))
    block = getattr(prepared, "block", None)
    origin = table.groupby("client")["origin"].first() if "origin" in table else clients
    return pd.DataFrame(
        {
            "client": clients,
            "origin": np.asarray(origin),
            "block": -1 if block is None else block[first.to_numpy()],
            "clients": np.where(is_newcomer, NEWCOMERS, PARTICIPANTS),
            **{
                f"n_{split}": counts[split].to_numpy() if split in counts else 0
                for split in ("train", "val", "test")
            },
        }
    )


def floor(table: pd.DataFrame, prepared: Prepared, metric: str) -> np.ndarray:
    """Return what each client gets without any model.

    That is what its most frequent training class gets on its test samples (the first of equal
    ones), or the mean of its training targets; of a client without training samples, those of all.

    Args:
        table: The partition.
        prepared: The data set.
        metric: ``accuracy`` or ``rmse``.

    Returns:
        Values [clients]; NaN for a client without test samples.
    """
    targets = prepared.y if metric == "accuracy" else prepared.target
    if targets is None:
        raise DataError(f"{prepared.name}: has no targets, which {metric} needs")
    samples, split = table["sample"].to_numpy(), table["split"].to_numpy(object)
    client = table["client"].to_numpy()
    of_all = targets[samples[split == "train"]]
    values = np.full(int(client.max()) + 1, np.nan)
    for number in range(len(values)):
        own = client == number
        train = targets[samples[own & (split == "train")]]
        test = targets[samples[own & (split == "test")]]
        train = train if len(train) else of_all
        if not len(test):
            continue
        if metric == "accuracy":
            values[number] = np.mean(test == np.bincount(train).argmax())
        else:
            gaps = test.astype(np.float64) - train.astype(np.float64).mean()
            values[number] = np.sqrt(np.mean(gaps**2))
    return values
