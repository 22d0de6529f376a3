"""What may be claimed: numbers by hand and against SciPy, verdicts on small studies."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from make_results import clients, entry, plan, planned, write_plan, write_run
from scipy.stats import binomtest

from fl.report import claims, claims_tables, summaries, tables
from fl.report.facts import gather


def test_an_exact_test_counts_the_signs_under_which_the_mean_is_as_far_from_0():
    # Of eight sums of +-1, +-2, +-4 the observed 7 and its negative: 2 of 8.
    assert claims.sign_flips([1, 2, 4]) == 0.25
    # The sums of +-3, +-1, +-1 are 5, 3, 3, 1 and their negatives; 3 or more: 6 of 8.
    assert claims.sign_flips([3, 1, -1]) == 0.75
    assert claims.sign_flips([0, 0, 0]) == 1
    assert math.isnan(claims.sign_flips([1.0]))


@pytest.mark.parametrize("signs", [[1] * 13, [1] * 9 + [-1], [1] * 6 + [-1] * 2])
def test_of_differences_of_one_size_it_is_the_sign_test(signs):
    heads = sum(sign > 0 for sign in signs)
    assert claims.sign_flips(signs) == pytest.approx(binomtest(heads, len(signs)).pvalue)


def test_the_smallest_p_is_that_of_differences_of_one_sign():
    assert claims.smallest(10) == claims.sign_flips([0.1] * 10) == 2 / 1024


def test_the_interval_of_the_mean_is_near_students_and_repeats():
    values = np.random.default_rng(0).normal(2, 1, 200)
    low, high = claims.interval(list(values))
    margin = 1.972 * values.std(ddof=1) / math.sqrt(200)  # t of 199 degrees at .975
    assert (low, high) == pytest.approx((values.mean() - margin, values.mean() + margin), abs=0.02)
    assert claims.interval(list(values)) == (low, high)
    assert claims.interval([0.5] * 6) == (0.5, 0.5)
    assert all(math.isnan(bound) for bound in claims.interval([0.5, 0.7, 0.6, 0.4, 0.5]))


def test_holm_is_that_of_the_steps_by_hand():
    # .01 x 3, .03 x 2, and .04 x 1, which is not let below the one before it.
    corrected = claims.holm([0.01, 0.04, math.nan, 0.03])
    assert corrected == pytest.approx([0.03, 0.06, math.nan, 0.06], nan_ok=True)
    assert claims.holm([0.6, 0.7]) == [1, 1]


def draws(store: Path, scores: dict[str, list[float]], **choices) -> dict:
    """A plan with a run for each method and draw of a partition; both clients score the same."""
    runs = []
    for method, values in scores.items():
        for draw, value in enumerate(values):
            write_run(store, f"{method}{draw}", clients([value, value]))
            place = f"dirichlet(clients=2, alpha=0.3, seed={draw})"
            choice = {"partition": place, "title": method.upper(), "partition_id": f"p{draw}"}
            runs.append(entry(f"{method}{draw}", method, **choice))
    return plan(runs, **choices)


TEN = [0.1 + 0.05 * i for i in range(10)]
SCORES = {
    "base": TEN,
    "up": [v + 0.02 for v in TEN],
    "down": [v - 0.02 for v in TEN],
    "even": [v + 0.02 * (-1) ** i for i, v in enumerate(TEN)],
    "same": TEN,
}


def settings_of(made: dict) -> summaries.SettingByScenario:
    return summaries.setting_by_scenario(planned(made))


def verdicts(made: dict, store: Path) -> dict[str, tuple]:
    rows, runs = tables.collect(planned(made), store)
    frame = claims.compared(
        rows, runs, made["metric"], made["baseline"], settings=settings_of(made)
    )
    return {r["method"]: (r["verdict"], r["reason"]) for r in frame.to_dict("records")}


def test_verdicts_over_ten_draws(tmp_path):
    made = draws(tmp_path, SCORES, baseline="base")
    assert verdicts(made, tmp_path) == {
        "up": ("ahead", ""),
        "down": ("behind", ""),
        "even": ("not told apart", ""),
        "same": ("uninformative", "SAME equals BASE"),
    }
    rows, runs = tables.collect(planned(made), tmp_path)
    frame = claims.compared(rows, runs, "accuracy", "base", settings=settings_of(made)).set_index(
        "method"
    )
    up = frame.loc["up"]
    # Three are tested, and `up` comes first: 2/1024 x 3.
    assert (up["n"], up["unit"], up["p"]) == (10, "draw", 2 / 1024)
    assert up["p_holm"] == pytest.approx(6 / 1024)
    assert up["difference"] == pytest.approx(0.02)
    assert (frame.loc["down", "better"], frame.loc["down", "worse"]) == (0, 1)
    assert up["partition"] == "dirichlet(clients=2, alpha=0.3)"


def test_less_is_better_for_a_loss(tmp_path):
    made = draws(tmp_path, {}, metric="loss", baseline="base")
    for method, by in (("base", 0), ("up", 1)):
        for draw in range(6):
            rows = clients([1.0 + draw + by] * 2, metric="loss")
            write_run(tmp_path, f"{method}{draw}", rows)
            place = f"dirichlet(clients=2, seed={draw})"
            made["runs"].append(entry(f"{method}{draw}", method, partition=place))
    assert verdicts(made, tmp_path)["up"] == ("behind", "")


def test_training_seeds_are_not_draws_and_three_show_nothing(tmp_path):
    made = plan([], baseline="base")
    for method, by in (("base", 0), ("up", 0.1)):
        for seed in range(3):
            write_run(tmp_path / "runs", f"{method}{seed}", clients([0.5 + by] * 2))
            made["runs"].append(entry(f"{method}{seed}", method, seed=seed))
    write_plan(tmp_path, made)
    facts = gather("small", tmp_path, tmp_path / "runs")
    assert facts.claims[["unit", "n", "p", "verdict"]].values.tolist() == [
        ["seed", 3, 0.25, "not told apart"]
    ]
    said = " ".join(claims_tables.claims_made(facts))
    assert "over 3 seeds" in said and "training is repeated" in said
    assert "the smallest possible corrected p-value is" in said


def test_a_comparison_at_the_ceiling_is_uninformative(tmp_path):
    """Two clients of ten test samples: errors of 3 and 4 % are less than one of the twenty."""
    scores = {"base": [0.96] * 6, "up": [0.97] * 6, "low": [0.94] * 6}
    made = draws(tmp_path, scores, baseline="base")
    assert verdicts(made, tmp_path) == {
        "up": ("uninformative", "at the ceiling"),
        "low": ("behind", ""),
    }


def test_errors_at_the_ceiling_are_counted_in_samples_and_not_by_the_mean_over_clients(tmp_path):
    """Ten clients, of which one has 300 of 390 test samples: seven of its samples are a mean over
    clients of .0023, which is less than 1/390.
    """
    made = plan([], baseline="base")
    for method, wrong in (("base", 7), ("up", 0), ("one", 1)):
        for draw in range(13):
            rows = [(2, 0, "test", "global", "accuracy", 1 - wrong / 300, 300)]
            rows += [(2, c, "test", "global", "accuracy", 1.0, 10) for c in range(1, 10)]
            write_run(tmp_path, f"{method}{draw}", rows)
            place = f"dirichlet(clients=10, seed={draw})"
            made["runs"].append(entry(f"{method}{draw}", method, partition=place))
    assert verdicts(made, tmp_path) == {"up": ("ahead", ""), "one": ("ahead", "")}
    rows, runs = tables.collect(planned(made), tmp_path)
    frame = claims.compared(rows, runs, "accuracy", "base", settings=settings_of(made))
    assert frame["p"].tolist() == [2 / 2**13] * 2
    assert verdicts(made | {"baseline": "one"}, tmp_path)["up"] == ("ahead", ""), "one is an error"


@pytest.mark.parametrize(("metric", "reason"), [("macro_f1", "at the ceiling"), ("auroc", "")])
def test_other_metrics_are_at_the_ceiling_by_the_errors_of_the_accuracy(tmp_path, metric, reason):
    made = plan([], baseline="base", metric=metric)
    for method, value in (("base", 0.9), ("up", 1.0)):
        for draw in range(6):
            rows = [*clients([0.96]), *clients([value], metric=metric)]
            write_run(tmp_path, f"{method}{draw}", rows)
            place = f"dirichlet(clients=1, seed={draw})"
            made["runs"].append(entry(f"{method}{draw}", method, partition=place))
    assert verdicts(made, tmp_path)["up"][1] == reason


def test_a_baseline_may_equal_another_entry(tmp_path):
    scores = {"up": SCORES["up"], "base": SCORES["base"], "copy": SCORES["base"]}
    made = draws(tmp_path, scores, baseline="copy")
    assert verdicts(made, tmp_path) == {"up": ("ahead", ""), "base": ("not told apart", "")}


def test_without_a_baseline_every_pair_is_tested(tmp_path):
    made = draws(tmp_path, {name: SCORES[name] for name in ("down", "base", "up")})
    rows, runs = tables.collect(planned(made), tmp_path)
    frame = claims.compared(rows, runs, "accuracy", None, settings=settings_of(made))
    pairs = frame[["method", "other"]].values.tolist()
    assert pairs == [["up", "base"], ["up", "down"], ["base", "down"]]
    assert set(frame["verdict"]) == {"ahead"}


def test_contrasts_are_tested_beside_the_baseline_and_corrected_with_all(tmp_path):
    contrasts = {"up": "down", "even": "gone"}
    scores = {name: SCORES[name] for name in ("base", "up", "down")}
    write_plan(tmp_path, draws(tmp_path / "runs", scores, baseline="base", contrasts=contrasts))
    facts = gather("small", tmp_path, tmp_path / "runs")
    frame = facts.claims
    pairs = frame[["method", "other", "verdict"]].values.tolist()
    assert pairs == [
        ["up", "base", "ahead"],
        ["down", "base", "behind"],
        ["up", "down", "ahead"],
    ]
    assert set(frame["p_holm"]) == {3 * 2 / 1024}
    assert frame["difference"].iloc[-1] == pytest.approx(0.04)
    table = claims_tables.paired_table(facts)
    assert table is not None
    assert table.caption.startswith("Against BASE (or another method, where the study says so) in")
    assert [row.cells[0].text for row in table.rows] == ["BASE", "DOWN", "BASE"]
    *_, said = claims_tables.claims_made(facts)
    assert said == "Ahead of BASE: UP; behind BASE: DOWN; ahead of DOWN: UP."


def test_the_report_says_what_is_ahead_and_behind(tmp_path):
    write_plan(tmp_path, draws(tmp_path / "runs", SCORES, baseline="base"))
    facts = gather("small", tmp_path, tmp_path / "runs")
    *_, said = claims_tables.claims_made(facts)
    assert said == ("Ahead of BASE: UP; behind BASE: DOWN; uninformative: SAME (SAME equals BASE).")


@pytest.mark.parametrize("per_draw", [False, True])
def test_the_report_says_where_draws_share_their_training_seed(tmp_path, per_draw):
    made = draws(tmp_path / "runs", SCORES, baseline="base")
    for run in made["runs"]:
        run["seed"] = int(run["partition_id"][1:]) if per_draw else 0
    write_plan(tmp_path, made)
    said = " ".join(claims_tables.claims_made(gather("small", tmp_path, tmp_path / "runs")))
    assert ("repeat the data and not the training" in said) is not per_draw
    assert ("has its own training seed: draws repeat data and training" in said) is per_draw
    assert "Ahead of BASE: UP" in said


def test_without_a_baseline_the_table_has_every_pair(tmp_path, monkeypatch):
    scores = {name: SCORES[name] for name in ("down", "base", "up")}
    write_plan(tmp_path, draws(tmp_path / "runs", scores, baseline=None))
    facts = gather("small", tmp_path, tmp_path / "runs")
    table = claims_tables.paired_table(facts)
    assert table is not None and table.caption.startswith("Each against each other, in pairs")
    pairs = [[row.head, row.cells[0].text] for row in table.rows]
    assert pairs == [["BASE", "DOWN"], ["UP", "BASE"], ["UP", "DOWN"]]
    monkeypatch.setattr(claims_tables, "MOST_PAIRS", 2)
    assert claims_tables.paired_table(facts) is None
