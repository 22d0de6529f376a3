"""A search: equal numbers of trials, from the seed and values alone, also where it is killed."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import killing
import pandas as pd
import planning
import pytest
from notebooks import CALL

import fl
from fl.base.errors import ConfigError, FedloomError, Location, single_errors
from fl.cli import main
from fl.notebook.trials import COMPLETE, DIVERGED, PRUNED, TrainedPoint, Trials
from fl.plan.config import Search
from fl.plan.search import SearchSpace, distributions

RATE = {"lr": {"log_uniform": [1e-3, 1]}}
MU = {"mu": {"uniform": [0, 1]}}
SEARCH: dict[str, Any] = {"trials": 5, "batch": 2, "training": RATE, "methods": {"fedprox": MU}}
METHODS: dict[str, Any] = {"fedavg": None, "fedprox": None}
OPTUNA = "the package of searches (make extras)"


def arguments(**changes: Any) -> dict[str, Any]:
    """The arguments of a small search."""
    return {**CALL, "rounds": 2, "methods": METHODS, "search": SEARCH, "name": "tiny", **changes}


def space(**keys: Any) -> SearchSpace:
    """A space of two entries; ``fedavg`` has one key, ``fedprox`` three."""
    added = {"local_epochs": {"integer": [1, 3]}}
    search = Search(
        **{"trials": 20, "training": RATE, "methods": {"fedprox": {**MU, **added}}} | keys
    )
    entries = distributions(search, {"fedavg": {}, "fedprox": {}}, {}, Location("search"))
    rungs = [1, 3, 9] if search.pruner != "none" else [9]
    return SearchSpace(search, entries, dict.fromkeys(entries, rungs))


def height(points: Sequence[TrainedPoint]) -> list[float]:
    """The value of each point: best at a rate of 0.1, whatever mu is; above 0.5 it diverges."""
    values = []
    for _, point in points:
        rate = point["lr",]
        rounds = point.get(("rounds",), 9)
        values.append(math.nan if rate > 0.5 else rounds / 9 - abs(math.log10(rate) + 1))
    return values


def made(given: SearchSpace) -> Trials:
    """All trials of a space whose values are `height`."""
    pytest.importorskip("optuna", reason=OPTUNA)
    trials = Trials(given, rising=True)
    for _ in trials.run(height):
        pass
    return trials


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_trials_follow_from_the_seed_and_all_entries_have_as_many(sampler: str) -> None:
    trials = made(space(sampler=sampler))
    points = {label: [t.point for t in of_entry] for label, of_entry in trials.by_entry.items()}
    assert {label: len(of_entry) for label, of_entry in points.items()} == dict.fromkeys(points, 20)
    again = made(space(sampler=sampler))
    assert {
        label: [t.point for t in of_entry] for label, of_entry in again.by_entry.items()
    } == points
    other = made(space(sampler=sampler, seed=1))
    assert other.by_entry["fedavg"][0].point != points["fedavg"][0]
    for point in points["fedprox"]:
        rate, mu, epochs = point.values()
        assert rate == float(f"{rate:.3g}") and 1e-3 <= rate <= 1 and 0 <= mu <= 1
        assert epochs in (1, 2, 3) and type(epochs) is int


def test_tpe_comes_nearer_than_its_random_beginning_and_knows_the_key_that_counts() -> None:
    trials = made(space(trials=40))
    distances = [abs(math.log10(t.point["lr",]) + 1) for t in trials.by_entry["fedprox"]]
    assert sum(distances[-10:]) < sum(distances[:10]) / 2
    assert trials.best("fedprox").value == max(t.value for t in trials.by_entry["fedprox"])
    shares = trials.importance("fedprox")
    assert max(shares, key=lambda key: shares[key]) == "lr" and shares["lr"] > 0.8
    assert not trials.importance("fedavg"), "a single key explains all"


def test_a_trial_that_diverges_is_the_worst_and_no_error() -> None:
    trials = made(space())
    diverged = [t for t in trials.by_entry["fedavg"] if t.point["lr",] > 0.5]
    assert diverged and {t.state for t in diverged} == {DIVERGED}
    assert {t.value for t in diverged} == {-math.inf}
    assert trials.best("fedavg").state == COMPLETE
    with pytest.raises(FedloomError, match="fedavg"):
        hot = space(training={"lr": {"log_uniform": [0.6, 1]}}, trials=2, methods={})
        made(hot).best("fedavg")


def test_halving_keeps_the_best_third_of_a_batch_at_each_rung() -> None:
    trials = made(
        space(pruner="halving", batch=9, trials=9, training={"lr": {"uniform": [0.1, 0.4]}})
    )
    of_entry = trials.by_entry["fedavg"]
    rounds = sorted(t.rounds for t in of_entry)
    assert rounds == [1] * 6 + [3] * 2 + [9]
    nearest = sorted(of_entry, key=lambda t: t.point["lr",])
    assert [t.rounds for t in nearest] == rounds[::-1], "the nearer to the best rate, the longer"
    assert [t.state for t in nearest] == [COMPLETE] + [PRUNED] * 8
    trained = [point["rounds",] for label, point in trials.trained if label == "fedavg"]
    assert sum(trained) == 9 * 1 + 3 * 3 + 9


def test_the_median_prunes_what_is_worse_than_half_of_all_trials_until_then() -> None:
    trials = made(space(pruner="median", batch=1, training={"lr": {"uniform": [0.1, 0.4]}}))
    seen: list[float] = []
    for trial in trials.by_entry["fedavg"]:
        seen.append(trial.point["lr",])
        # The nearer to 0.1, the better, so that the order of values is that of rates.
        is_better = 2 * sum(rate < seen[-1] for rate in seen) <= len(seen) - 1
        assert (trial.rounds > 1) == is_better
    assert {t.state for t in trials.by_entry["fedavg"]} == {COMPLETE, PRUNED}


def searched(folder: Path) -> fl.SearchResult:
    """A small search in a folder, with two rungs."""
    os.chdir(folder)
    return fl.search(**arguments(search={**SEARCH, "pruner": "halving"}))


def test_a_search_that_is_killed_twice_ends_with_the_same_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna", reason=OPTUNA)
    monkeypatch.chdir(tmp_path)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    first = searched(whole)
    for count in (3, 9):
        with killing.running(searched, broken) as child:
            while child.is_alive() and len([*broken.glob("results/runs/*/run.json")]) < count:
                time.sleep(0.02)
        assert child.exitcode == -signal.SIGKILL
    again = searched(broken)
    pd.testing.assert_frame_equal(first.trials, again.trials, check_exact=True)
    runs = [{r.run for r in found.result.study.runs} for found in (first, again)]
    assert runs[0] == runs[1]
    stored = [
        sorted(p.parent.name for p in f.glob("results/runs/*/run.json")) for f in (whole, broken)
    ]
    assert stored[0] == stored[1], "every trial is in the store, and nothing else"
    assert set(first.trials["state"]) <= {COMPLETE, PRUNED}
    assert first.trials.groupby("entry")["chosen"].sum().eq(1).all()
    of_trials = fl.load("tiny-trials").runs()
    chosen = of_trials[of_trials["selected"]]
    assert set(chosen["rounds"]) == {of_trials["rounds"].max()}, "no pruned one"
    assert chosen["method"].nunique() == 2
    report = Path("results/plan/studies/tiny-trials.json").read_text()
    assert "5 trials of each entry" in report and "pruned" in report
    assert str(first).startswith("fedavg: 5 trials")


def test_an_entry_that_diverges_in_a_run_is_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna", reason=OPTUNA)
    monkeypatch.chdir(tmp_path)
    rates = {"lr": {"choice": [0.05, 1e30]}}
    search = {"trials": 4, "sampler": "random", "training": rates}
    found = fl.search(**arguments(methods=["fedavg"], search=search))
    assert set(found.trials["state"]) == {COMPLETE, DIVERGED}
    [chosen] = found.trials[found.trials["chosen"]]["hp.lr"]
    assert chosen == 0.05


SCHEME = {"dirichlet": {"alpha": 0.5, "clients": 4, "min_samples": 5}}


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"search": {**SEARCH, "trials": 0}}, "search.trials", "0"),
        ({"search": {**SEARCH, "trails": 9}}, "search.trails", "did you mean 'trials'"),
        ({"search": {**SEARCH, "training": {"lrr": RATE["lr"]}}}, "search.training.lrr", "'lr'"),
        ({"search": {**SEARCH, "training": {"lr": 0.1}}}, "search.training.lr", "0.1"),
        ({"search": {**SEARCH, "training": {"lr": {"log": [1, 2]}}}}, "lr.log", "log_uniform"),
        (
            {"search": {**SEARCH, "training": {"lr": {"uniform": [1, 0.1]}}}},
            *("search.training.lr.uniform", "[1.0, 0.1]"),
        ),
        (
            {"search": {**SEARCH, "training": {"lr": {"log_uniform": [0, 1]}}}},
            *("search.training.lr.log_uniform", "[0.0, 1.0]"),
        ),
        ({"search": {**SEARCH, "training": {"lr": {"uniform": [0, 1]}}}}, "training.lr", "> 0"),
        (
            {"search": {**SEARCH, "training": {"batch_size": {"uniform": [4, 100]}}}},
            *("search.training.batch_size", "a whole number"),
        ),
        ({"methods": {"fedprox": {"mu": [0, 1]}}}, "search.methods.fedprox.mu", "[0, 1]"),
        (
            {"methods": {**METHODS, "fedprox": {"local_steps": [1, 2]}}},
            *("search", "local_steps has a grid in fedprox"),
        ),
        ({"search": {**SEARCH, "methods": {"fedprocks": MU}}}, "methods.fedprocks", "'fedprox'"),
        ({"search": {**SEARCH, "training": {}}}, "search.methods.fedavg", "no searched key"),
        (
            {"methods": {**METHODS, "ft": {"method": "finetune", "start": "fedavg"}}},
            *("search.methods.fedavg", "ft starts from it"),
        ),
        ({"partition": {"dirichlet": {**SCHEME["dirichlet"], "val": 0.0}}}, "methods", "val > 0"),
        ({"partition": {"dirichlet": {**SCHEME["dirichlet"], "alpha": [0.5, 5]}}}, "search", "2"),
        ({"search": {**SEARCH, "trials": 9000}}, "search.trials", "18,000"),
        ({"search": {**SEARCH, "pruner": "hyperband"}}, "search.pruner", "hyperband"),
        ({"search": None}, "search", "is missing"),
    ],
)
def test_a_mistake_is_told_before_anything_is_trained(
    changes: dict[str, Any],
    key: str,
    value: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        fl.search(**arguments(**changes))
    errors = [error for error in single_errors(caught.value) if value in str(error)]
    assert any(key in error.location.key for error in errors), caught.value
    assert not [*tmp_path.glob("results/runs/*")]


def test_a_mistyped_distribution_is_the_only_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        fl.search(**arguments(search={**SEARCH, "training": {"lr": {"log": [1, 2]}}}))
    assert len(single_errors(caught.value)) == 1
    Path("Snakefile").touch()
    assert main.main(["search", "tiny", "rounds=3"]) == 1
    assert "rounds: 3 in the file" in capsys.readouterr().err


def test_without_optuna_the_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(FedloomError, match="optuna"):
        fl.search(**arguments(methods=["fedavg"], search={"trials": 1, "training": RATE}))
    assert not [*tmp_path.glob("results/runs/*")]


def test_values_that_go_together_are_points_and_no_grid(tmp_path: Path) -> None:
    together = {"lr": {"together": [0.1, 0.2]}, "mu": {"together": [1, 0]}, "local_steps": [1, 2]}
    config = planning.write_config(tmp_path, {"methods": {"fedprox": together}})
    points = [run.point for run in planning.plan.make(config).studies["tiny"].runs]
    pairs = [(point["lr"], point["mu"]) for point in points]
    assert sorted(pairs) == [(0.1, 1), (0.1, 1), (0.2, 0), (0.2, 0)]
    for wrong, location in (({"together": 0.1}, "mu"), ({"together": [1]}, "mu.together")):
        changed = {"methods": {"fedprox": {**together, "mu": wrong}}}
        config = planning.write_config(tmp_path / location, changed)
        with pytest.raises(ConfigError) as caught:
            planning.plan.make(config)
        assert location in caught.value.location.key
