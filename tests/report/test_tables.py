"""The long table, what is selected, and every summary against numbers worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from make_results import clients, entry, plan, planned, write_plan, write_run

from fl.base.errors import DataError
from fl.base.schema import RESULT_COLUMNS
from fl.plan import result_paths
from fl.report import claims, cost_tables, published, result_files, summaries, tables
from fl.report.facts import Facts, gather
from fl.report.outline import blocks, outline
from fl.store.store import Store

LONG = RESULT_COLUMNS | {summaries.REPORTED: "bool"} | tables.POINT_COLUMNS


def two_seeds(store: Path) -> dict:
    """FedAvg scores (0.5, 0.7) and (0.6, 0.8) on its two clients, Local the reverse of the gain."""
    write_run(store, "a0", [*clients([0.1, 0.1], round=1), *clients([0.5, 0.7])])
    write_run(store, "a1", clients([0.6, 0.8]))
    write_run(store, "b0", clients([0.9, 0.7]))
    write_run(store, "b1", clients([0.9, 0.7]))
    made = [
        entry("a0", "fedavg", seed=0),
        entry("a1", "fedavg", seed=1),
        entry("b0", "local", seed=0),
        entry("b1", "local", seed=1),
    ]
    return plan(made, baseline="fedavg")


def row(frame: pd.DataFrame, method: str) -> pd.Series:
    (measured,) = (r for _, r in frame[frame["method"] == method].iterrows())
    return measured


def test_mean_and_spreads_are_those_worked_out_by_hand(tmp_path):
    rows, runs = tables.collect(planned(two_seeds(tmp_path)), tmp_path)
    measured = row(summaries.summarise(rows, runs, "accuracy"), "fedavg")
    # Seeds: 0.6 and 0.7. Clients over seeds: 0.55 and 0.75.
    assert measured["mean"] == pytest.approx(0.65)
    assert measured["sd_seeds"] == pytest.approx(math.sqrt(0.005))
    assert measured["sd_clients"] == pytest.approx(math.sqrt(0.02))
    assert measured["worst"] == pytest.approx(0.55)
    assert measured["p10"] == pytest.approx(0.57)
    assert (measured["round"], measured["stage"], measured["n_seeds"]) == (2, "global", 2)


def test_the_personal_stage_is_reported_from_its_first_round(tmp_path):
    tuned = [*clients([0.5, 0.5], round=0), *clients([0.75, 1.0], round=1, stage="personal")]
    both = [*clients([0.1, 0.2]), *clients([0.75, 1.0], stage="personal")]
    both += clients([2.0, 2.0], metric="loss", split="train")
    write_run(tmp_path, "a0", tuned)
    write_run(tmp_path, "b0", both)
    rows, runs = tables.collect(planned(plan([entry("a0", "ft"), entry("b0", "ditto")])), tmp_path)
    summary = summaries.summarise(rows, runs, "accuracy")
    shown = summary[["method", "stage", "mean", "round", "n_clients"]].values.tolist()
    assert shown == [["ft", "personal", 0.875, 1, 2], ["ditto", "personal", 0.875, 2, 2]]
    hidden = rows.loc[~rows["reported"], ["method", "stage", "round", "metric"]].drop_duplicates()
    assert hidden.values.tolist() == [["ditto", "global", 2, "accuracy"]]


def test_the_best_round_of_each_client_counts_where_it_is_asked_for(tmp_path):
    """Client 0 does best in round 1, client 1 in 2 and again in 3: it counts at the first."""
    metrics = []
    for number, (val, test) in enumerate(
        [([0.9, 0.1], [0.2, 0.3]), ([0.8, 0.5], [0.4, 0.5]), ([0.7, 0.5], [0.6, 0.7])], 1
    ):
        metrics += [*clients(val, split="val", round=number), *clients(test, round=number)]
    write_run(tmp_path, "a0", metrics)
    made = plan([entry("a0", "fedavg")])
    last, runs = tables.collect(planned(made), tmp_path)
    assert row(summaries.summarise(last, runs, "accuracy"), "fedavg")["mean"] == pytest.approx(0.65)
    rows, runs = tables.collect(planned({**made, "scored": "best"}), tmp_path)
    measured = row(summaries.summarise(rows, runs, "accuracy"), "fedavg")
    assert measured["mean"] == pytest.approx((0.2 + 0.5) / 2)
    assert summaries.grid_points(rows, runs, "accuracy")["val"].item() == pytest.approx(
        (0.9 + 0.5) / 2
    )
    # Who cannot tell a best round is scored in the last one.
    rows = rows[(rows["split"] == "test") | (rows["client"] == 1)].drop(columns=summaries.SCORED)
    rows[summaries.SCORED] = summaries.best_rounds(rows, "accuracy")
    assert summaries.final_rows(rows, "accuracy")["value"].tolist() == [0.5, 0.6]


def best(store: Path) -> tuple[Facts, dict[str, float]]:
    """One run in whose four rounds each of two clients does best before the last.

    The shared model's best rounds are 1 and 2, the clients' own 2 and 3; each test value is its
    own. Returns the facts, and the means that the best rounds give.
    """
    shared = {1: (0.10, 0.12), 2: (0.14, 0.16), 3: (0.18, 0.20), 4: (0.22, 0.24)}
    own = {1: (0.50, 0.52), 2: (0.80, 0.56), 3: (0.58, 0.90), 4: (0.62, 0.64)}
    rows = []
    for stage, values, peaks in (("global", shared, (1, 2)), ("personal", own, (2, 3))):
        for number, test in values.items():
            val = [0.9 if number == peak else 0.1 for peak in peaks]
            rows += clients(val, number, "val", stage) + clients(test, number, "test", stage)
    traffic = {"clients": 2, "participants": 2, "traffic": [[4, 10, 5]], "flops": 1.0}
    traffic |= {"bytes_down": 10, "bytes_up": 5, "state_client": 0, "state_server": 0}
    noise = [{"name": "noise", "multiplier": 2.0, "delta": 0.1}]
    write_run(store / "runs", "a0", rows, costs=traffic, spec={"wire": noise})
    write_plan(store, plan([entry("a0", "ditto")], scored="best"))
    means = {"before": (0.10 + 0.16) / 2, "after": (0.80 + 0.90) / 2}
    return gather("small", store, store / "runs"), means


def test_where_the_best_round_counts_every_table_takes_it(tmp_path):
    facts, means = best(tmp_path)
    assert row(facts.summary, "ditto")["mean"] == pytest.approx(means["after"])
    personal = row(summaries.personalisation(facts.rows, facts.runs, "accuracy"), "ditto")
    assert personal[["before", "after"]].tolist() == pytest.approx([*means.values()])
    private = cost_tables.privacy_table(facts)
    assert private is not None and private.rows[0].cells[3].text == f"{100 * means['before']:.1f}"
    # Means of the four rounds are .51, .68, .74 and .63: 90 % of .85 are not reached, as no round
    # is the best of both clients; 80 % would be in round 2.
    pace = row(summaries.pace(facts.rows, facts.runs, "accuracy"), "ditto")
    assert pace[[*map(str, summaries.PACE_SHARES), "best", "bytes"]].isna().all()
    pace_of = {"metric": "rounds to ditto", "dataset": "digits"}
    assert published.measured_summary(facts, pace_of)["mean"].isna().all(), "no round is at .85"
    sentence = facts.round_note.strip()
    names = {block.name for block in blocks(outline(facts)) if sentence in block.note}
    assert sentence and names >= {"settings", "personalisation", "privacy", "pace", "costs"}


def test_a_stage_that_ends_before_the_last_round_is_scored_without_validation_samples(tmp_path):
    """Fine-tuning scores the shared model in round 0 alone."""
    rows = [*clients([0.4, 0.6], 0), *clients([0.7, 0.9], 3, stage="personal")]
    write_run(tmp_path, "a0", [*rows, *clients([1.0, 1.0], 3, "train", metric="loss")])
    table = tables.collect(planned(plan([entry("a0", "ft")], scored="best")), tmp_path)
    personal = row(summaries.personalisation(*table, "accuracy"), "ft")
    assert personal[["before", "after"]].tolist() == pytest.approx([0.5, 0.8])


def grid(store: Path, states: tuple[str, str] = ("complete", "complete"), val: bool = True) -> dict:
    """Two points: validation prefers the second, test the first."""
    scores = {"p": (0.6, 0.9), "q": (0.7, 0.5)}
    made = []
    for (run, (on_val, on_test)), mu, state in zip(scores.items(), (0.1, 1), states, strict=True):
        rows = clients([on_test, on_test])
        write_run(store, run, [*rows, *(clients([on_val] * 2, split="val") if val else [])], state)
        made.append(entry(run, "fedprox", point={"mu": mu}))
    return plan(made)


SELECTED = {
    # By what it is: states of both points, the metric, the point that is selected.
    "validation decides, even where test would choose another": ("ok", "ok", "accuracy", "mu=1"),
    "by accuracy for a metric it lacks": ("ok", "ok", "reweighted_accuracy", "mu=1"),
    "what diverged is not, however well it did": ("ok", "diverged", "accuracy", "mu=0.1"),
    "where all diverged the first is": ("diverged", "diverged", "accuracy", "mu=0.1"),
    "one diverged seed rules a point out": ("ok", "other seed", "accuracy", "mu=0.1"),
}


@pytest.mark.parametrize("case", SELECTED)
def test_one_point_of_a_grid_is_selected(case, tmp_path):
    first, second, metric, expected = SELECTED[case]
    states = {"ok": "complete", "other seed": "complete", "diverged": "diverged"}
    made = grid(tmp_path, (states[first], states[second]))
    if second == "other seed":
        write_run(tmp_path, "q1", [*clients([0.1]), *clients([0.1], split="val")], "diverged")
        made["runs"].append(entry("q1", "fedprox", point={"mu": 1}, seed=1))
    _, runs = tables.collect(planned({**made, "metric": metric}), tmp_path)
    assert set(runs.loc[runs["selected"], "point"]) == {expected}


def test_points_show_validation_and_test_and_equal_ones_leave_the_first_selected(tmp_path):
    rows, runs = tables.collect(planned(grid(tmp_path / "a")), tmp_path / "a")
    assert row(summaries.summarise(rows, runs, "accuracy"), "fedprox")["mean"] == 0.5
    points = summaries.grid_points(rows, runs, "accuracy").set_index("point")
    assert points.loc["mu=0.1", ["val", "test"]].tolist() == [0.6, 0.9]
    for run in ("p", "q"):
        write_run(tmp_path, run, [*clients([0.5]), *clients([0.7], split="val")])
    made = [entry(r, "fedprox", point={"mu": m}) for r, m in (("p", 1), ("q", 2))]
    _, runs = tables.collect(planned(plan(made)), tmp_path)
    assert list(runs.loc[runs["selected"], "run"]) == ["p"]


def test_both_tables_say_the_point_of_every_row_and_whether_it_was_selected(tmp_path):
    made = grid(tmp_path / "store")
    write_run(tmp_path / "store", "a", clients([0.4, 0.5]))
    write_run(tmp_path / "store", "d", clients([0.4, 0.5]))
    made["runs"].insert(0, entry("a", "fedavg"))
    made["runs"].append(entry("d", "mk", point={"mk-mmd.mu": 1, "n": 3, "seed": True, "x": [2]}))
    for table in result_files.write(planned(made), tmp_path / "store", tmp_path):
        back = table.drop_duplicates("run").set_index("run")
        assert back["point"].to_dict() == {
            **{"a": "", "p": "mu=0.1", "q": "mu=1"},
            "d": "mk-mmd.mu=1, n=3, seed=true, x=[2]",
        }
        assert back["selected"].to_dict() == {"a": True, "p": False, "q": True, "d": True}
        hyper = back[[c for c in back if str(c).startswith("hp.")]]
        assert list(hyper) == ["hp.mk-mmd.mu", "hp.mu", "hp.n", "hp.seed", "hp.x"]
        kinds = ["Int64", "float64", "Int64", "boolean", "string"]
        assert [str(t) for t in hyper.dtypes] == kinds
        assert hyper["hp.mu"].dropna().to_dict() == {"p": 0.1, "q": 1.0}
        assert hyper.loc["d"].dropna().tolist() == [1, 3, True, "[2]"]
        assert hyper.loc["a"].isna().all()


def test_the_runs_table_says_what_was_stacked_and_what_a_run_stands_on(tmp_path):
    together = {"backend": "stacked", "device": "cpu", "stack": ["a0", "a1"]}
    for run in ("a0", "a1"):
        write_run(tmp_path, run, clients([0.5], round=10), execution=together, seconds=4.0)
    write_run(tmp_path, "f0", clients([0.5], round=5), start="a0")
    write_run(tmp_path, "g0", clients([0.5]), start="f0")
    write_run(tmp_path, "g1", clients([0.5]), start="gone")
    made = [entry(run, run, seed=int(run[1])) for run in ("a0", "a1", "f0", "g0", "g1", "z0")]
    _, runs = tables.collect(planned(plan(made)), tmp_path)
    measured = runs.set_index("run")
    assert measured["stack"].dropna().to_dict() == {
        **{"a0": "a0, a1", "a1": "a0, a1"},
        **{"f0": "f0", "g0": "g0", "g1": "g1"},
    }
    assert measured.groupby("stack")["seconds"].sum()["a0, a1"] == 8.0
    before = measured["rounds_before"].dropna().to_dict()
    assert before == {"a0": 0, "a1": 0, "f0": 10, "g0": 15}, "g1's and z0's are not known"


def test_of_trials_only_one_with_all_rounds_is_chosen(tmp_path):
    made = []
    for run, rounds, value in (("p", 1, 0.9), ("q", 3, 0.5), ("r", 3, 0.6)):
        write_run(tmp_path, run, [*clients([value]), *clients([value], split="val")])
        made.append(entry(run, "fedavg", point={"lr": value}))
        made[-1]["spec"] = {"training": {"rounds": rounds}}
    for choice, chosen in (("any", "p"), ("longest", "r")):
        _, runs = tables.collect(planned({**plan(made), "choice": choice}), tmp_path)
        assert [*runs[runs["selected"]]["run"]] == [chosen]


def test_points_of_a_grid_that_are_not_there_are_counted(tmp_path):
    made = grid(tmp_path)
    made["runs"] += [
        entry("r", "fedprox", point={"mu": 10}),  # not trained
        entry("p1", "fedprox", point={"mu": 0.1}, seed=1),  # one seed of two
        entry("s", "fedavg"),
    ]
    summary = summaries.summarise(*tables.collect(planned(made), tmp_path), "accuracy")
    gridded, plain = row(summary, "fedprox"), row(summary, "fedavg")
    assert (gridded["n_points"], gridded["n_complete_points"], gridded["mean"]) == (3, 1, 0.5)
    assert (plain["n_points"], plain["n_complete_points"], plain["n_missing"]) == (1, 0, 1)
    assert summaries.gaps(gridded) == "preliminary choice: 1 of 3 grid points complete"
    assert summaries.gaps(plain) == "1 missing", "no grid"
    for run, value in (("r", 0.4), ("p1", 0.1)):
        write_run(tmp_path, run, [*clients([value]), *clients([value], split="val")], "diverged")
    gridded = row(
        summaries.summarise(*tables.collect(planned(made), tmp_path), "accuracy"), "fedprox"
    )
    assert summaries.gaps(gridded) == "", "what diverged is there"


def test_a_grid_is_selected_for_each_setting_by_itself(tmp_path):
    made = []
    for model, scores in (("mlp", (0.6, 0.7)), ("cnn", (0.7, 0.6))):
        for mu, score in zip((1, 2), scores, strict=True):
            write_run(tmp_path, f"{model}{mu}", [*clients([0.5]), *clients([score], split="val")])
            made.append(entry(f"{model}{mu}", "fedprox", point={"mu": mu}, model=model))
    _, runs = tables.collect(planned(plan(made)), tmp_path)
    assert list(runs.loc[runs["selected"], "run"]) == ["mlp2", "cnn1"]


def test_a_grid_without_validation_rows_is_an_error_that_names_the_method(tmp_path):
    with pytest.raises(DataError, match="'fedprox' has a grid of 2 points but no validation"):
        tables.collect(planned(grid(tmp_path, val=False)), tmp_path)


def test_missing_and_diverged_runs_are_counted_and_kept_out_of_the_mean(tmp_path):
    made = two_seeds(tmp_path)
    write_run(tmp_path, "a2", clients([0.0, math.nan]), state="diverged")
    made["runs"] += [entry("a2", "fedavg", seed=2), entry("a3", "fedavg", seed=3)]
    rows, runs = tables.collect(planned(made), tmp_path)
    measured = row(summaries.summarise(rows, runs, "accuracy"), "fedavg")
    assert (measured["n_seeds"], measured["n_diverged"], measured["n_missing"]) == (2, 1, 1)
    assert measured["mean"] == pytest.approx(0.65)
    assert set(rows["run"]) == {"a0", "a1", "a2", "b0", "b1"}
    missing = runs[runs["run"] == "a3"].iloc[0]
    assert missing["state"] == "missing"
    assert pd.isna(missing["rounds"]) and pd.isna(missing["backend"])


def test_paired_comparison_is_over_common_seeds_at_the_selected_points(tmp_path):
    made = two_seeds(tmp_path)
    made["runs"] = [e for e in made["runs"] if e["run"] != "a1"]
    rows, runs = tables.collect(planned(made), tmp_path)
    settings = summaries.setting_by_scenario(planned(made))
    (measured,) = claims.compare_methods(
        rows, runs, "accuracy", "fedavg", settings=settings
    ).to_dict("records")
    # Local minus FedAvg: client 0 gains 0.4, client 1 nothing.
    assert (measured["n"], measured["difference"]) == (1, pytest.approx(0.2))
    assert (measured["better"], measured["worse"]) == (0.5, 0.0)
    measured = claims.compare_methods(rows, runs, "accuracy", "nobody", settings=settings)
    assert measured.empty and list(measured.columns) == claims.COMPARISON_COLUMNS
    made = grid(tmp_path / "grid")
    write_run(tmp_path / "grid", "a", clients([0.4, 0.4]))
    made["runs"].append(entry("a", "fedavg"))
    rows, runs = tables.collect(planned(made), tmp_path / "grid")
    settings = summaries.setting_by_scenario(planned(made))
    (measured,) = claims.compare_methods(
        rows, runs, "accuracy", "fedprox", settings=settings
    ).to_dict("records")
    assert measured["difference"] == pytest.approx(-0.1)


def test_less_is_better_for_a_loss(tmp_path):
    write_run(tmp_path, "a", clients([1.0, 3.0, 3.0], metric="loss"))
    write_run(tmp_path, "b", clients([0.5, 2.0, 1.0], metric="loss"))
    made = plan([entry("a", "base"), entry("b", "other")], metric="loss", baseline="base")
    rows, runs = tables.collect(planned(made), tmp_path)
    base = row(summaries.summarise(rows, runs, "loss"), "base")
    assert (base["worst"], base["p10"]) == (3.0, 3.0)


def test_equal_runs_give_the_same_bytes_whatever_their_timing_and_row_order(tmp_path):
    made = two_seeds(tmp_path / "one")
    made["runs"].reverse()
    again = two_seeds(tmp_path / "two")
    for run in ("a0", "b1"):
        store = Store(tmp_path / "two")
        rows = store.metrics(run).sample(frac=1, random_state=1)
        store.remove(run)
        rows = list(rows.itertuples(index=False, name=None))
        write_run(store.root, run, rows, seconds=99.0)
    result_files.write(planned(made), tmp_path / "one", tmp_path / "t1")
    result_files.write(planned(again), tmp_path / "two", tmp_path / "t2")

    def same(name: str) -> bool:
        return (
            len({(tmp_path / folder / "tables" / name).read_bytes() for folder in ("t1", "t2")})
            == 1
        )

    assert same("small.parquet")
    assert not same("small.runs.parquet")


def test_tables_carry_the_plan_and_whether_they_are_complete(tmp_path):
    made = two_seeds(tmp_path / "store")
    result_files.write(planned(made), tmp_path / "store", tmp_path)
    paths = [tmp_path / "tables" / name for name in ("small.parquet", "small.runs.parquet")]
    assert [tables.read_plan_hash(p) for p in paths] == [("cafe0123", True)] * 2
    made["runs"].append(entry("zz", "fedavg", seed=9))
    result_files.write(planned(made), tmp_path / "store", tmp_path)
    assert tables.read_plan_hash(paths[0]) == ("cafe0123", False)
    assert sorted(p.name for p in (tmp_path / "tables").iterdir()) == [p.name for p in paths]
    back = pd.read_parquet(paths[0])
    assert {c: str(t) for c, t in back.dtypes.items()} == LONG
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    for name in ("absent", "broken", "other"):
        assert tables.read_plan_hash(tmp_path / f"{name}.parquet") is None


def test_tables_that_are_removed_at_once_by_another_snakemake_do_no_harm(tmp_path, monkeypatch):
    made, store, results = two_seeds(tmp_path / "store"), tmp_path / "store", tmp_path / "results"
    wanted = result_files.write(planned(made), store, results)
    shown = [path.read_bytes() for path in result_paths.paths(results, "small")[2:]]
    write = result_files.files.write_bytes

    def lose(path: Path, content: bytes) -> None:
        write(path, content)
        if path.suffix == ".parquet":
            path.unlink()

    monkeypatch.setattr(result_files.files, "write_bytes", lose)
    measured = result_files.write(planned(made), store, results)
    assert [path.read_bytes() for path in result_paths.paths(results, "small")[2:]] == shown
    for table, same in zip(measured, wanted, strict=True):
        pd.testing.assert_frame_equal(table, same)


def test_a_store_entry_that_cannot_be_read_is_named(tmp_path):
    made = two_seeds(tmp_path)
    (tmp_path / "a0" / "metrics.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"a0/metrics\.parquet: has 4 bytes"):
        tables.collect(planned(made), tmp_path)
    (tmp_path / "a0" / "run.json").write_text('{"state": "compl')
    with pytest.raises(DataError, match=r"a0/run\.json: is not readable"):
        tables.collect(planned(made), tmp_path)


def test_nothing_trained_yet_is_no_error(tmp_path):
    made = plan([entry("a", "fedavg"), entry("b", "prox", point={"mu": 1})])
    made["runs"].append(entry("c", "prox", point={"mu": 2}))
    rows, runs = tables.collect(planned(made), tmp_path)
    assert rows.empty
    assert {c: str(t) for c, t in rows.dtypes.items()} == {**LONG, "hp.mu": "Int64"}
    assert list(runs.loc[runs["selected"], "run"]) == ["a", "b"]
    measured = summaries.summarise(rows, runs, "accuracy")
    assert list(measured["n_missing"]) == [1, 1]
    assert np.isnan(measured["mean"]).all()
