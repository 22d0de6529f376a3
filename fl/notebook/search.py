"""Search of hyper-parameters; each trial is a point of an ordinary study.

What the store has is not trained again, so that a search that was killed asks for the same trials,
and goes on where it was.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fl.api.training import Training
from fl.base import fields
from fl.base.errors import ConfigError, FedloomError, FedloomWarning, Location
from fl.base.schema import rising
from fl.base.units import values_text
from fl.notebook import keys
from fl.notebook.display import short_traceback
from fl.notebook.result import Result
from fl.notebook.run import run, settings_of
from fl.notebook.trials import DIVERGED, PRUNED, TrainedPoint, Trial, Trials
from fl.plan import config as config_files
from fl.plan import plan
from fl.plan.config import Search, Values
from fl.plan.search import (
    EXAMPLE,
    SearchSpace,
    distributions,
    key_of,
    placed,
    placed_location,
    sample_points,
    search_space,
    with_points,
)
from fl.plan.study_plan import StudyPlan
from fl.report import result_files, summaries
from fl.report.tables import HYPER

TRIALS, CHOSEN = "trials", "chosen"
"""Ends of the names of the two studies of a search, behind its name and a dash."""
LEFT_OUT = ("search", "analyses", "published", "contrasts", "keep_weights", "keep_predictions")
"""Keys that the study of trials does not have."""

MAX_RUNS = 2**31 - 1
"""Largest number of runs of a study of trials, as their number was checked before."""

Check = Callable[[Values, Location], StudyPlan]
"""Function that plans a study with the location of its keys."""
Train = Callable[[str, Values], Result]
"""Function that trains the study of trials, or of what is chosen."""


@dataclass(frozen=True, repr=False)
class SearchResult:
    """Results of a search, returned by `fl.search`.

    Attributes:
        result: Results of the study with the chosen values.
        trials: A row for each trial: ``entry``, ``trial``, ``state`` (complete, pruned or
            diverged), ``rounds``, ``value`` (mean on validation data after these rounds; NaN if it
            diverged), ``chosen``, and a column ``hp.<key>`` for each key.
        importance: Share of the variance of values of complete trials that a key explains (fANOVA),
            with the columns ``entry``, ``key`` and ``importance``; of entries with several keys and
            ten complete trials at least.
    """

    result: Result
    trials: pd.DataFrame
    importance: pd.DataFrame

    def __repr__(self) -> str:
        return "\n".join([*self.lines(), repr(self.result)])

    def lines(self) -> Iterator[str]:
        """Yield a line for each entry: its trials, the chosen one, the importance of keys."""
        for entry, rows in self.trials.groupby("entry", sort=False):
            [chosen] = rows[rows["chosen"]].to_dict("records")
            point = {
                str(key).removeprefix(HYPER): value
                for key, value in chosen.items()
                if str(key).startswith(HYPER) and value is not None
            }
            states = rows["state"].value_counts()
            counts = [f", {states[s]} {s}" for s in (PRUNED, DIVERGED) if s in states]
            line = f"{entry}: {len(rows)} trials{''.join(counts)}; chosen: {values_text(point)} "
            line += f"({chosen['value']:.4f} on validation data)"
            shares = self.importance[self.importance["entry"] == entry]
            texts = [f"{row['key']} {row['importance']:.2f}" for row in shares.to_dict("records")]
            yield line + (f"; importance of keys: {', '.join(texts)}" if texts else "")


@short_traceback
def search(
    *, name: str = "notebook", config: str | Path | None = None, progress: bool = True, **study: Any
) -> SearchResult:
    """Search hyper-parameters of a study that is written as a call, with Optuna.

    The arguments are those of `run`, and ``search``, a mapping with the keys in
    ``docs/reference/config.md``, such as
    ``{"trials": 20, "training": {"lr": {"log_uniform": [1e-3, 1]}}}``. Each entry gets as many
    trials. The best one by validation data is then trained with the study's seeds. An interrupted
    call continues when it is repeated, and ends with the same trials.

    Args:
        name: Name of the search; its studies are ``NAME-trials`` and ``NAME-chosen``.
        config: Config folder, see `run`.
        progress: Whether to show progress bars.
        study: The study's keys.

    Raises:
        FedloomError: For a wrong key, without Optuna, if runs fail, and if all trials of an entry
            diverge.
        KeyboardInterrupt: When interrupted; finished runs and checkpoints are kept.
    """
    folder, settings = settings_of(config)

    def check(values: Values, location: Location) -> StudyPlan:
        draft, of_call = keys.study(values, settings, location)
        return plan.make(folder, {name: draft}, settings=of_call).studies[name]

    def train(suffix: str, values: Values) -> Result:
        with warnings.catch_warnings():
            if suffix == TRIALS:  # Their states say it.
                warnings.filterwarnings("ignore", "diverged: ", FedloomWarning)
            return run(name=f"{name}-{suffix}", config=config, progress=progress, **values)

    methods = keys.with_entry_names(study.get("methods"))
    return find({**study, "methods": methods}, keys.CALL, check, train)


def find(
    study: Values,
    location: Location,
    check: Check,
    train: Train,
    report: Callable[[str], None] = lambda line: None,
) -> SearchResult:
    """Search the hyper-parameters of a study, and train it with those that are chosen.

    Args:
        study: The study as it is written.
        location: Location of the study.
        check: Plans a study.
        train: Trains a study.
        report: Function that gets a line on how far the search is.
    """
    entries = _entries(study, location)
    space, metric = _space(study, entries, location, check)
    trials = Trials(space, rising(metric))
    title = str(study.get("title") or "Search")

    def train_trials(points: Sequence[TrainedPoint], text: str = "") -> Result:
        about = {"title": f"{title}: trials", "question": text, "max_runs": MAX_RUNS}
        about["choice"] = "any" if space.search.pruner == "none" else "longest"
        methods = with_points(entries, points)
        return train(TRIALS, {**_trial_keys(study, space.search), **about, "methods": methods})

    for _ in trials.run(lambda points: _values(train_trials(points), points)):
        n_trials = len(next(iter(trials.by_entry.values())))
        report(f"{n_trials} of {space.search.trials} trials of each entry")
    chosen = {label: trials.best(label) for label in space.entries}
    methods = {
        label: placed(entry, chosen[label].point) if label in chosen else entry
        for label, entry in entries.items()
    }
    without_search = {key: value for key, value in study.items() if key != "search"}
    chosen_result = train(CHOSEN, {**without_search, "methods": methods})
    result = SearchResult(chosen_result, _table(trials, chosen), _importance(trials))
    train_trials(trials.trained, f"{_about(space.search)} {'. '.join(result.lines())}.")
    return result


def _entries(study: Values, location: Location) -> dict[str, Values]:
    """Return the entries of a study by label, each as a mapping."""
    place = location / "methods"
    methods = fields.mapping(config_files.named_entries(study.get("methods"), place), place)
    return {
        label: {"method": entry} if keys.is_own(entry) else fields.mapping(entry, place / label)
        for label, entry in methods.items()
    }


def _space(
    study: Values, entries: Mapping[str, Values], location: Location, check: Check
) -> tuple[SearchSpace, str]:
    """Return what is searched, after a study with samples of it was planned, and the metric."""
    place = location / "search"
    if study.get("search") is None:
        raise ConfigError(place, "is missing", advice=EXAMPLE)
    search = Search(**fields.parse(Search, study["search"], place))
    if study.get("grid") == "published":
        problem = "is published, but hyper-parameters are searched"
        raise ConfigError(location / "grid", problem, "swept")
    training = {key: study[key] for key in fields.fields(Training) if key in study}
    training |= fields.mapping(study.get("training"), location / "training")
    searched = distributions(search, entries, training, place)
    methods = with_points(entries, sample_points(searched))
    values = {**_trial_keys(study, search), "methods": methods}
    planned = check(values, placed_location(location, searched))
    max_runs = int(study.get("max_runs", config_files.Study.max_runs))
    return search_space(search, searched, planned, place, max_runs), planned.metric


def _trial_keys(study: Values, search: Search) -> Values:
    """Return the keys of a study that that of its trials has, with the seeds of the search."""
    keys_of_study = {key: value for key, value in study.items() if key not in LEFT_OUT}
    return keys_of_study if search.seeds is None else {**keys_of_study, "seeds": search.seeds}


def _values(result: Result, points: Sequence[TrainedPoint]) -> list[float]:
    """Return the value of each point on validation data; NaN if a run of it diverged.

    It is the mean over clients, seeds and draws.

    Raises:
        FedloomError: If a run failed.
    """
    study, settings = result.study, result.settings
    rows, runs = result_files.read(study, Path(settings.store), Path(settings.results))
    table = summaries.grid_points(rows, runs, study.metric)
    if missing := int(table["n_missing"].sum()):
        problem = f"the study {study.study}: {missing} runs have failed"
        raise FedloomError(problem, advice="correct what failed; the same call continues")
    table["val"] = table["val"].where(table["n_diverged"] == 0)
    mean_of = table.groupby(["method", "point"])["val"].agg(lambda draws: draws.mean(skipna=False))
    # A key with one value for all trials is in no planned point.
    planned = {run.method: [*run.point] for run in study.runs}
    by_point = {
        (run.method, repr([*run.point.values()])): mean_of[run.method, values_text(run.point)]
        for run in study.runs
    }
    values: list[float] = []
    for label, point in points:
        by_key = {key_of(path): value for path, value in point.items()}
        values.append(float(by_point[label, repr([by_key[key] for key in planned[label]])]))
    return values


def _table(trials: Trials, chosen: Mapping[str, Trial]) -> pd.DataFrame:
    """Return the rows of `SearchResult.trials`."""
    rows = [trial for of_entry in trials.by_entry.values() for trial in of_entry]
    columns = {
        "entry": [trial.entry for trial in rows],
        "trial": [trial.number for trial in rows],
        "state": [trial.state for trial in rows],
        "rounds": [trial.rounds for trial in rows],
        "value": [math.nan if t.state == DIVERGED else t.value for t in rows],
        "chosen": [trial is chosen[trial.entry] for trial in rows],
    }
    values = [{key_of(path): value for path, value in trial.point.items()} for trial in rows]
    hyper = {
        f"{HYPER}{key}": pd.Series([point.get(key) for point in values], dtype=object)
        for key in dict.fromkeys(key for point in values for key in point)
    }
    return pd.DataFrame(columns | hyper)


def _importance(trials: Trials) -> pd.DataFrame:
    """Return the rows of `SearchResult.importance`."""
    rows = [
        (label, key, share)
        for label in trials.by_entry
        for key, share in trials.importance(label).items()
    ]
    return pd.DataFrame(rows, columns=["entry", "key", "importance"])


def _about(search: Search) -> str:
    """Return how a search was made, in a sentence."""
    sampler = {"tpe": "by TPE", "random": "at random"}[search.sampler]
    from optuna import __version__

    pruner = "" if search.pruner == "none" else f", pruned by {search.pruner} between rounds"
    version = f"Optuna {__version__}, seed {search.seed}"
    return f"{search.trials} trials of each entry, {sampler} ({version}){pruner}."
