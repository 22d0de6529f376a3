"""A track of twelve clients: points are chosen, clients are scored, and all of it is kept."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import killing
import numpy as np
import pandas as pd
import planning
import pytest
import toy_track

import fl
from fl.base.errors import ConfigError, DataError, FedloomError
from fl.data.prepared import Prepared
from fl.notebook import track_training
from fl.notebook.track_training import TrackTraining, Tuned, kept_choice
from fl.plan import track
from fl.plan.track import NEWCOMERS, PARTICIPANTS, Trial
from fl.report import claims, kept_tracks, result_files, summaries, track_claims, track_verdicts
from fl.report.kept_tracks import FLOOR, TrackResults
from fl.report.track_verdicts import NO_OP
from tools import comparison

FILES = ("values.parquet", "clients.parquet", "tried.csv", "tuning.parquet")
"""Files that say nothing of time and machine."""


def enter_lab(root: Path, patch: pytest.MonkeyPatch, keys: dict[str, Any] | None = None) -> Path:
    """Enter a new working directory whose config has the toy track."""
    root.mkdir(exist_ok=True)
    toy_track.write(planning.write_config(root), keys)
    patch.chdir(root)
    return root


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the toy track after training at both budgets."""
    root = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        enter_lab(root, patch)
        assert comparison.main(["toy", "--trial", "kept"]) == 0
        assert comparison.main(["toy", "--trial", "kept", "--budget", "4"]) == 0
    return root


@pytest.fixture
def kept(trained: Path) -> TrackResults:
    return kept_tracks.read(kept_tracks.folder_of(trained / "kept", "toy"))


def test_every_client_has_a_value_in_the_role_that_it_has(kept: TrackResults) -> None:
    assert kept.clients["origin"].nunique() == 8  # Four of the twelve tune.
    assert set(kept.clients.groupby("draw").size()) == {8}
    roles = kept.clients.set_index(["draw", "client"])["clients"]
    assert (roles.groupby(level="draw").value_counts().unstack()[NEWCOMERS] == 2).all()
    at_once = kept.values[kept.values["budget"] == 1]
    for entry, role in [
        *[("fedavg", role) for role in (PARTICIPANTS, NEWCOMERS)],
        *[(FLOOR, role) for role in (PARTICIPANTS, NEWCOMERS)],
        ("fedprox", PARTICIPANTS),
    ]:
        rows = at_once[(at_once["entry"] == entry) & (at_once["clients"] == role)]
        scored = set(zip(rows["draw"], rows["client"], strict=True))
        assert scored == set(roles.index[roles == role])
    assert not (at_once[at_once["entry"] == "fedprox"]["clients"] == NEWCOMERS).any()
    newcomers = kept.clients[kept.clients["clients"] == NEWCOMERS]
    assert (newcomers["n_train"] <= 5).all() and (newcomers["n_test"] > 5).all()


def test_points_are_the_best_of_the_tuning_clients_and_grids_grow(kept: TrackResults) -> None:
    tried = kept.tried[kept.tried["budget"] == 1]
    own = tried[tried["entry"] == "fedavg"]
    assert own["hp.lr"].max() > 0.1, "the best rate was an edge of the grid"
    best = own.loc[own[PARTICIPANTS].idxmax()]
    chosen = own[own["chosen"].str.contains(PARTICIPANTS)].iloc[0]
    assert chosen[PARTICIPANTS] == best[PARTICIPANTS]
    # Every start of a fine-tuning has the point that was chosen for the same clients.
    runs = kept.runs[kept.runs["budget"] == 1].drop_duplicates(["entry", "clients"])
    point = runs.set_index(["entry", "clients"])["point"]
    start = runs.set_index(["entry", "clients"])["start"]
    for role in (PARTICIPANTS, NEWCOMERS):
        assert start["fedavg-ft", role] == point["fedavg", role] != ""
    costs = runs.set_index(["entry", "clients"])[["operations", "bytes"]]
    assert (costs > 0).all(axis=None)
    assert costs["bytes"]["fedavg-ft", PARTICIPANTS] < costs["bytes"]["fedavg", PARTICIPANTS]


def test_choices_follow_from_the_values_of_tuning_clients(kept: TrackResults) -> None:
    """Their means over clients are those of the table of tuning runs, point by point."""
    tried, key = kept.tried, ["budget", "entry", "draw"]
    tried = tried.assign(point=tried.groupby(key).cumcount()).set_index([*key, "point"])
    means = kept.tuning.groupby([*key, "point", "clients"])["value"].mean().unstack("clients")
    assert len(means) == len(tried)
    for role in (PARTICIPANTS, NEWCOMERS):
        assert means[role].reindex(tried.index).to_numpy() == pytest.approx(tried[role].to_numpy())
    clients = kept.tuning[kept.tuning["budget"] == 1].groupby(["entry", "point", "draw"]).size()
    assert set(clients) == {4}, "four of the twelve tune"


def test_runs_say_what_trained_them(kept: TrackResults) -> None:
    assert kept.runs["fedloom"].str.len().min() > 0
    assert kept.runs["numbers"].str.contains("core").all()
    assert set(kept.clients["name"]) == {""}, "synthetic clients have no names"


def test_files_without_the_later_columns_are_read(trained: Path, tmp_path: Path) -> None:
    """Names of clients, versions of Fedloom and values of tuning clients came later."""
    place = tmp_path / "toy"
    shutil.copytree(kept_tracks.folder_of(trained / "kept", "toy"), place)
    whole = kept_tracks.read(place)
    (place / "tuning.parquet").unlink()
    pd.read_csv(place / "runs.csv").drop(columns="fedloom").to_csv(place / "runs.csv", index=False)
    path = place / "clients.parquet"
    pd.read_parquet(path).drop(columns="name").to_parquet(path)
    found = kept_tracks.read(place)
    assert found.tuning.empty and set(found.clients["name"]) == {""}
    pd.testing.assert_frame_equal(found.values, whole.values)
    # Results of another budget stand beside them, with all columns.
    later = replace(whole, **{name: of_budget(whole, name, 4) for name in TABLES})
    joined = kept_tracks.write(place, later)
    assert set(joined.tuning["budget"]) == {4} and set(joined.runs["budget"]) == {1, 4}
    pd.testing.assert_frame_equal(kept_tracks.read(place).values, whole.values)


TABLES = ("values", "runs", "tried", "tuning")


def of_budget(kept: TrackResults, name: str, budget: int) -> pd.DataFrame:
    table: pd.DataFrame = getattr(kept, name)
    return table[table["budget"] == budget]


def test_a_point_that_diverged_in_one_of_two_draws_is_not_chosen(trained: Path) -> None:
    found = track.read(trained / "config", "toy")
    training = TrackTraining(found, trained / "config")
    grid = {"lr": [0.1, 0.2, 0.4]}
    rows = [
        {"trial": Trial("fedavg", (("lr", lr),)), "draw": draw, PARTICIPANTS: value}
        for lr, values in ((0.1, (0.9, np.nan)), (0.2, (0.5, 0.6)), (0.4, (0.4, 0.6)))
        for draw, value in enumerate(values)
    ]
    none = Tuned({}, pd.DataFrame(), pd.DataFrame(), {})
    best = training._best("fedavg", PARTICIPANTS, pd.DataFrame(rows), grid, none)
    assert dict(best.point) == {"lr": 0.2}


def test_an_entry_that_the_budget_before_lacks_is_told(trained: Path) -> None:
    found = track.read(trained / "config", "toy")
    kept = kept_tracks.read(kept_tracks.folder_of(trained / "kept", "toy"))
    previous = kept.tried[(kept.tried["budget"] == 1) & (kept.tried["entry"] != "fedavg")]
    training = TrackTraining(found, trained / "config", 4, previous=previous)
    with pytest.raises(DataError, match="toy: fedavg is not trained at the budget before"):
        training.tune(["fedavg"])
    less = replace(kept, tried=previous)
    with pytest.raises(DataError, match="toy: has no kept choice of fedavg for participants"):
        kept_choice(found, less, ["fedavg"])


def test_a_larger_budget_tunes_next_to_the_points_of_before(kept: TrackResults) -> None:
    before, after = (kept.tried[kept.tried["budget"] == times] for times in (1, 4))
    # The best entry, both baselines, and what these start from.
    assert {"fedavg", "fedavg-ft"} <= set(after["entry"])
    rounds = kept.runs[(kept.runs["entry"] == "fedavg") & (kept.runs["clients"] == PARTICIPANTS)]
    operations = rounds.groupby("budget")["operations"].mean()
    assert operations[4] == pytest.approx(4 * operations[1])
    ft = after[after["entry"] == "fedavg-ft"]["hp.rounds"]
    assert ft.max() < 16 and ft.min() >= 4 * before["hp.rounds"].min()


def test_verdicts_follow_from_what_is_kept(trained: Path, kept: TrackResults) -> None:
    found = track.read(trained / "config", "toy")
    table = track_verdicts.verdicts(kept, found).set_index(["family", "entry"])
    row = table.loc[("personal", "fedavg")]
    values = {
        entry: kept_tracks.entry_values(kept, entry, PARTICIPANTS)
        for entry in ("fedavg", "fedavg-ft")
    }
    assert values["fedavg"] is not None and values["fedavg-ft"] is not None
    gains = (values["fedavg"] - values["fedavg-ft"]).mean(axis=1)
    assert row["difference"] == pytest.approx(gains.mean())
    assert row["n"] == gains.notna().sum()
    assert row["better"] == pytest.approx((gains > 0).mean())
    assert row["low"] <= row["difference"] <= row["high"]
    equal_cost = track_verdicts.at_equal_cost(kept, found, "operations")
    assert set(equal_cost["family"]) <= {"personal", "newcomers", "shared"}


def test_equal_points_go_to_the_no_op_and_are_not_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = {"fedavg": {"lr": 0.1}, "fedprox": {"lr": 0.1, "mu": [0, 1e-9]}}
    families = {"shared": {"baseline": "fedavg", "entries": ["fedprox"]}}
    enter_lab(tmp_path, monkeypatch, toy_track.changed(methods=methods, families=families))
    found = track.read(Path("config"), "toy")
    training = TrackTraining(found, Path("config"))
    tuned = training.tune(found.entries())
    assert dict(tuned.chosen["fedprox", PARTICIPANTS].point) == {"mu": 0.0}
    kept = training.score(tuned, found.entries())
    [row] = track_verdicts.verdicts(kept, found).to_dict("records")
    assert (row["verdict"], row["no_op"]) == (NO_OP, "fedavg")
    assert np.isnan(row["p"])


def test_a_run_that_diverged_is_at_the_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = {"fedavg": {"lr": 0.1}, "fedprox": {"lr": 1e30, "mu": 0.1}}
    families = {"shared": {"baseline": "fedavg", "entries": ["fedprox"]}}
    keys = toy_track.changed(methods=methods, families=families, no_ops={})
    enter_lab(tmp_path, monkeypatch, keys)
    found = track.read(Path("config"), "toy")
    training = TrackTraining(found, Path("config"))
    kept = training.score(training.tune(found.entries()), found.entries())
    states = kept.runs.groupby("entry")["state"].unique().map(list).to_dict()
    assert states == {"fedavg": ["complete"], "fedprox": ["diverged"]}
    assert "fedprox" not in set(kept.values["entry"])
    values = kept_tracks.entry_values(kept, "fedprox", PARTICIPANTS)
    floor = kept.values[(kept.values["entry"] == FLOOR) & (kept.values["clients"] == PARTICIPANTS)]
    assert values is not None
    pd.testing.assert_frame_equal(
        values, floor.pivot(index="client", columns="draw", values="value"), check_dtype=False
    )
    [row] = track_verdicts.verdicts(kept, found).to_dict("records")
    assert (row["verdict"], row["failed"]) == (track_verdicts.UNSTABLE, 3)
    # A run that is missing leaves no verdict.
    lost = kept_tracks.track_results(kept.values, kept.clients, kept.runs, kept.tried)
    lost.runs.loc[lost.runs["entry"] == "fedprox", "state"] = "missing"
    [row] = track_verdicts.verdicts(lost, found).to_dict("records")
    assert row["verdict"] == track_verdicts.MISSING_RUN


def test_a_killed_track_goes_on_to_equal_bytes(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, kept_place = enter_lab(tmp_path, monkeypatch), kept_tracks.folder_of(Path("kept"), "toy")
    whole = kept_tracks.read(trained / kept_place)
    tuning_runs = int((whole.tried["budget"] == 1).sum())
    for count in (4, tuning_runs + 8):  # While points are chosen, and while clients are scored.
        with killing.running(toy_track.train, lab) as child:
            while child.is_alive() and len([*lab.glob("runs/*/run.json")]) < count:
                time.sleep(0.02)
        assert child.exitcode == -signal.SIGKILL
        assert not (lab / kept_place).exists()
    assert comparison.main(["toy", "--trial", "kept"]) == 0
    again = kept_tracks.read(kept_place)
    for key in ("values", "clients", "tried", "tuning"):
        first, second = getattr(whole, key), getattr(again, key)
        if key != "clients":
            first = first[first["budget"] == 1].reset_index(drop=True)
        pd.testing.assert_frame_equal(first, second, check_exact=True)
    before = {name: (kept_place / name).read_bytes() for name in FILES}
    assert comparison.main(["toy", "--trial", "kept"]) == 0
    assert {name: (kept_place / name).read_bytes() for name in FILES} == before


def test_only_a_committed_file_is_trained_for_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    enter_lab(tmp_path, monkeypatch)
    found = track.read(Path("config"), "toy")
    with pytest.raises(ConfigError) as caught:
        comparison.registered(found)
    assert caught.value.location == found.location

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=A", "-c", "user.email=a@b")
        command = ["git", *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    with pytest.raises(ConfigError) as caught:
        comparison.registered(found)
    assert caught.value.location == found.location
    assert comparison.main(["toy"]) == 1
    assert f"{found.location}: " in capsys.readouterr().err
    assert not Path("runs").exists()
    git("add", "config")
    git("commit", "--quiet", "-m", "A track")
    about = comparison.registered(found)
    assert about["commit"] == git("rev-parse", "HEAD")
    assert set(about) == {"claims", "settings", "commit", "date"}
    found.path.write_text(found.path.read_text() + "# another line\n")
    with pytest.raises(ConfigError):
        comparison.registered(found)


def test_a_budget_needs_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_lab(tmp_path, monkeypatch)
    found = track.read(Path("config"), "toy")
    with pytest.raises(ConfigError) as caught:
        comparison.entries_at(found, 3, Path("kept"))
    assert caught.value.location.key == "budgets"
    with pytest.raises(FedloomError):
        comparison.entries_at(found, 4, Path("kept"))


def test_a_lead_is_trained_on_at_a_larger_budget(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not it is among the best, which are one here."""
    found = track.read(trained / "config", "toy")
    place = kept_tracks.folder_of(trained / "kept", "toy")
    entries, _ = comparison.entries_at(found, 4, place)
    [other] = {*found.entries()} - {*entries}
    verdicts = track_verdicts.verdicts(kept_tracks.read(place), found)
    ahead = verdicts.assign(verdict=verdicts["verdict"].mask(verdicts["entry"] == other, "ahead"))
    monkeypatch.setattr(track_verdicts, "verdicts", lambda *arguments: ahead)
    assert set(comparison.entries_at(found, 4, place)[0]) == {*entries, other}


def test_the_share_of_claims_that_are_kept() -> None:
    columns = ["family", "entry", "other", "verdict"]
    first = [("a", "x", "b", "ahead"), ("a", "y", "b", "equal"), ("a", "z", "b", claims.OPEN)]
    second = [("a", "x", "b", "ahead"), ("a", "y", "b", claims.OPEN), ("a", "z", "b", "ahead")]
    tables = (pd.DataFrame(rows, columns=columns) for rows in (first, second))
    assert track_claims.count_kept(*tables) == (1, 2)


def test_the_floor_is_the_majority_class_or_the_mean(tmp_path: Path) -> None:
    table = pd.DataFrame(
        [
            *[(0, 0, "train"), (1, 0, "train"), (2, 0, "train"), (3, 0, "test"), (4, 0, "test")],
            *[(5, 1, "train"), (6, 1, "test")],
            (7, 2, "test"),
        ],
        columns=["sample", "client", "split"],
    )
    labels = np.array([1, 1, 0, 1, 0, 0, 0, 1])
    targets = np.array([1.0, 2.0, 3.0, 2.0, 5.0, 1.0, 4.0, 0.0])

    class Data:
        name, y, target = "data", labels, targets

    data: Prepared = Data()  # type: ignore[assignment]
    # The third client has no training samples: of all four 1, 1, 0, 0 the first class is 0.
    assert track_training.floor(table, data, "accuracy").tolist() == [0.5, 1.0, 0.0]
    errors = track_training.floor(table, data, "rmse")
    assert errors == pytest.approx([np.sqrt(4.5), 3.0, 1.75])
    of_clients = track_training.client_table(table, data)
    assert of_clients["n_train"].tolist() == [3, 1, 0]
    assert of_clients["n_val"].tolist() == [0, 0, 0]
    assert set(of_clients["clients"]) == {PARTICIPANTS} and set(of_clients["block"]) == {-1}


def test_entries_at_their_no_op_are_the_entry_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    planning.write_config(tmp_path)
    folder = planning.ROOT / "config"
    tracks = [track.read(folder, name) for name in track.names(folder)]
    entries = {
        name: (keys[track.IS], {"method": name, **found.keys(name), **found.no_op(name)})
        for found in tracks
        for name, keys in found.no_ops.items()
        # FedALA draws batches for its shares; kNN-Per has its start of fewer rounds.
        if name not in ("fedala", "knn-per")
    }
    assert {"fedprox", "ditto", "apfl"} <= set(entries)
    result = fl.run(
        dataset="digits",
        partition={"homogeneous": {"clients": 4, "val": 0.2, "test": 0.3}},
        model={"mlp": {"hidden": [4]}},
        training={"rounds": 5, "local_steps": 2, "batch_size": 8, "lr": 0.1},
        methods={"fedavg": None, "local": None} | {n: keys for n, (_, keys) in entries.items()},
        execution=track.EXECUTION,
        progress=False,
    )
    rows, _ = result_files.read(
        result.study, Path(result.settings.store), Path(result.settings.results)
    )
    final = summaries.final_rows(rows, "loss")
    values = {name: own.set_index("client")["value"] for name, own in final.groupby("method")}
    for name, (other, _) in entries.items():
        exact = entries[name][1]["method"] != "fedavgm"  # It adds the change, which rounds.
        pd.testing.assert_series_equal(values[name], values[other], check_exact=exact, obj=name)
