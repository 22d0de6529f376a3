"""Claims of a report: numbers by hand and against SciPy, verdicts on small studies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from make_results import clients, entry, plan, planned, write_partition, write_plan, write_run
from scipy.stats import binomtest, permutation_test, ttest_1samp

from fl.report import claims, claims_tables, summaries, tables
from fl.report.facts import gather


def sign_flips(differences: Sequence[float]) -> float:
    """The p-value of one comparison."""
    alone, corrected = claims.p_values(np.array([differences], float))
    np.testing.assert_equal(alone, corrected)
    return float(alone[0])


def test_an_exact_test_counts_the_signs_under_which_the_mean_is_as_far_from_0():
    # Of eight sums of +-1, +-2, +-4 the observed 7 and its negative: 2 of 8.
    assert sign_flips([1, 2, 4]) == 0.25
    # The sums of +-3, +-1, +-1 are 5, 3, 3, 1 and their negatives; 3 or more: 6 of 8.
    assert sign_flips([3, 1, -1]) == 0.75
    assert sign_flips([0, 0, 0]) == 1
    assert math.isnan(sign_flips([1.0]))


NOISE = np.random.default_rng(0).normal(0.2, 1, (4, 9))
NOISE[3] = NOISE[0] + 0.01 * NOISE[1]  # Two that rise and fall together.


@pytest.mark.parametrize("alternative", ["two-sided", "greater"])
def test_one_comparison_is_scipys_permutation_test(alternative):
    for row in NOISE:
        expected = permutation_test(
            (row,), np.mean, permutation_type="samples", n_resamples=2**9, alternative=alternative
        ).pvalue
        p, _ = claims.p_values(row[None], one_sided=alternative == "greater")
        assert p[0] == pytest.approx(expected)


def by_loops(differences: np.ndarray, by_tail: bool = True) -> list[float]:
    """Step-down maxT as a table of every flip and its t values, one by one, of SciPy."""
    tests, draws = differences.shape
    tables = []
    for signs in itertools.product([1, -1], repeat=draws):
        row = []
        for values in differences:
            there = np.isfinite(values)
            test = ttest_1samp((values * signs)[there], 0)
            row.append(-test.pvalue if by_tail else abs(test.statistic))
        tables.append(row)
    observed, corrected, largest_p = tables[0], [0.0] * tests, 0.0
    left = sorted(range(tests), key=lambda test: -observed[test])
    while left:
        first = left[0]
        beaten = sum(max(row[k] for k in left) >= observed[first] - 1e-12 for row in tables)
        largest_p = max(largest_p, beaten / len(tables))
        corrected[first] = largest_p
        left = left[1:]
    return corrected


def test_the_correction_is_step_down_maxt_by_loops_also_where_a_draw_is_missing():
    differences = NOISE[:, :8] * [[0.1], [1], [10], [0.1]]  # t has no unit.
    differences[1, 5] = np.nan
    p, corrected = claims.p_values(differences)
    assert corrected == pytest.approx(by_loops(differences))
    assert (corrected >= p).all() and corrected.max() > p.max(), "something is corrected"


def test_comparisons_of_few_draws_do_not_decide_for_those_of_many():
    """t of three draws is often large; by its tail it counts as what it is."""
    random = np.random.default_rng(4)
    differences = np.full((6, 9), np.nan)
    differences[0], differences[1:, :3] = random.normal(1, 0.5, 9), random.normal(0, 1, (5, 3))
    corrected = claims.p_values(differences)[1]
    assert corrected == pytest.approx(by_loops(differences))
    assert corrected[0] <= claims.LEVEL < by_loops(differences, by_tail=False)[0]


def test_of_more_than_thirteen_draws_random_flips_come_near_scipys_and_repeat():
    values = np.random.default_rng(1).normal(0.4, 1, 14)
    p, _ = claims.p_values(values[None])
    exact = permutation_test((values,), np.mean, permutation_type="samples", n_resamples=2**14)
    assert p[0] == pytest.approx(exact.pvalue, abs=0.003)
    assert claims.p_values(values[None])[0] == p
    assert claims.p_values(np.ones((1, 20)))[0] >= claims.smallest_p(20) == 1 / 2**16
    told = "sign-flip test with 65,535 random flips, seed 0, of Student's t over draws"
    assert claims.flip_rule(20) == told


def test_no_more_is_rejected_by_chance_than_the_level_says():
    """A hundred families of ten comparisons without a difference: about five have a claim."""
    draws = np.random.default_rng(2)
    families = [draws.standard_normal((10, 8)) + draws.standard_normal(8) for _ in range(100)]
    hits = sum(bool((claims.p_values(family)[1] <= claims.LEVEL).any()) for family in families)
    assert binomtest(hits, 100, claims.LEVEL).pvalue > 0.01


@pytest.mark.parametrize("signs", [[1] * 13, [1] * 9 + [-1], [1] * 6 + [-1] * 2])
def test_of_differences_of_one_size_it_is_the_sign_test(signs):
    heads = sum(sign > 0 for sign in signs)
    assert sign_flips(signs) == pytest.approx(binomtest(heads, len(signs)).pvalue)


def test_the_smallest_p_is_that_of_differences_of_one_sign():
    assert claims.smallest_p(10) == sign_flips([0.1] * 10) == 2 / 1024


def test_the_interval_of_the_mean_is_near_students_and_repeats():
    values = np.random.default_rng(0).normal(2, 1, 200)
    low, high = claims.interval(tuple(values))
    margin = 1.972 * values.std(ddof=1) / math.sqrt(200)  # t of 199 degrees at .975
    assert (low, high) == pytest.approx((values.mean() - margin, values.mean() + margin), abs=0.02)
    assert claims.interval(tuple(values)) == (low, high)
    assert claims.interval((0.5,) * 6) == (0.5, 0.5)
    assert all(math.isnan(bound) for bound in claims.interval((0.5, 0.7, 0.6, 0.4, 0.5)))


def judged(*differences: Sequence[float]) -> pd.DataFrame:
    records = [claims.comparison_values(values) for values in differences]
    return claims.with_verdicts(pd.DataFrame(records))


def test_equal_is_what_two_one_sided_tests_put_within_a_point_of_0():
    """Each bound is SciPy's one-sided test of differences that are shifted by it."""
    near = [0.001 * i for i in (-2, 3, 1, -4, 2, 0, 1)]
    [p] = judged(near)["p_equal"]
    sides = [
        permutation_test(
            (np.array(values),), np.mean, permutation_type="samples", alternative="greater"
        ).pvalue
        for values in (np.add(near, 0.01), np.subtract(0.01, near))
    ]
    assert p == pytest.approx(max(sides)) and p <= claims.LEVEL
    table = judged(near, [0.012] * 7, [0.002, 0.03, -0.02, 0.001, 0.0, 0.02, 0.01])
    assert [claims.equality_text(row) for row in table.to_dict("records")] == ["yes", "", ""]
    assert (table["p_equal"] >= [p, 0, 0]).all(), "corrected for three"
    assert (
        claims.with_verdicts(pd.DataFrame([claims.comparison_values(near)]), margin=math.nan)[
            "p_equal"
        ]
        .isna()
        .all()
    )


def test_what_cannot_be_told_apart_takes_no_part_in_the_correction():
    rows = NOISE[:, :7] + 0.5
    assert judged(*rows, [0.1, 0.2])["p_corrected"].tolist()[:4] == (
        judged(*rows)["p_corrected"].tolist()
    )


def test_units_are_matched_by_their_names():
    first = pd.Series([0.3, -0.1, 0.2], [4, 7, 9])
    second = pd.Series([0.2, 0.3, -0.1], [9, 4, 7])
    records = [claims.comparison_values(first), claims.comparison_values(second)]
    assert records[0]["differences"] == {4: 0.3, 7: -0.1, 9: 0.2}
    table = claims.with_verdicts(pd.DataFrame(records))
    assert table["p_corrected"].tolist() == table["p"].tolist(), "they are one comparison"


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
    frame = claims.compare_methods(
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
    frame = claims.compare_methods(
        rows, runs, "accuracy", "base", settings=settings_of(made)
    ).set_index("method")
    up = frame.loc["up"]
    # Of `even` no flip has as large a t as `up`, whose differences are one size.
    assert (up["n"], up["unit"], up["p"]) == (10, "draw", 2 / 1024)
    # Two flips make all differences of `even` one size too.
    assert up["p_corrected"] == 4 / 1024
    assert [*up["differences"]] == [*range(10)]
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
    assert "the smallest possible p-value is 0.25" in said


@pytest.mark.parametrize("scores", [{}, {"base": 0.5}])
def test_nothing_is_said_of_tests_before_two_methods_have_runs(tmp_path, scores):
    made = plan([], baseline="base")
    for method, seed in itertools.product(("base", "up"), range(2)):
        if method in scores:
            write_run(tmp_path / "runs", f"{method}{seed}", clients([scores[method]] * 2))
        made["runs"].append(entry(f"{method}{seed}", method, seed=seed))
    write_plan(tmp_path, made)
    assert claims_tables.claims_made(gather("small", tmp_path, tmp_path / "runs")) == ()


def test_where_nothing_is_tested_no_test_is_told_and_few_seeds_have_no_interval(tmp_path):
    made = plan([], baseline="base")
    for method, seed in itertools.product(("base", "same"), range(2)):
        write_run(tmp_path / "runs", f"{method}{seed}", clients([0.5 + seed / 10] * 2))
        made["runs"].append(entry(f"{method}{seed}", method, seed=seed))
    write_plan(tmp_path, made)
    facts = gather("small", tmp_path, tmp_path / "runs")
    assert claims_tables.claims_made(facts) == ("Uninformative: same (same equals base).",)
    table = claims_tables.paired_table(facts)
    assert table is not None
    assert "bootstrap interval" in table.caption, "that there is none"


def test_the_smallest_p_value_is_told_as_in_the_table(tmp_path):
    """Of four draws it is 0.125, which two digits would round to 0.12."""
    scores = {"base": [0.5, 0.6, 0.5, 0.6], "up": [0.61, 0.7, 0.6, 0.7]}
    write_plan(tmp_path, draws(tmp_path / "runs", scores, baseline="base"))
    facts = gather("small", tmp_path, tmp_path / "runs")
    assert facts.claims["p"].tolist() == [0.125]
    said = " ".join(claims_tables.claims_made(facts))
    assert "4 draws" in said and "0.125" in said


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
    frame = claims.compare_methods(rows, runs, "accuracy", "base", settings=settings_of(made))
    assert frame["p"].tolist() == [2 / 2**13] * 2
    assert verdicts(made | {"baseline": "one"}, tmp_path)["up"] == ("ahead", ""), "one is an error"


def test_two_methods_at_the_majority_class_are_uninformative(tmp_path):
    """Two clients of ten samples, 60 % of one class; one error of both clients is within it."""
    scores = {"base": [0.6] * 6, "up": [0.64] * 6, "high": [0.66] * 6}
    results = tmp_path / "results"
    made = draws(results / "runs", scores, baseline="base")
    write_plan(results, made)
    for draw in range(6):
        write_partition(results, f"p{draw}", dict.fromkeys(("train", "test"), [[6, 4]] * 2), "ab")
    facts = gather("small", results, results / "runs")
    frame = facts.claims.set_index("method")
    assert frame["reason"].to_dict() == {"up": "at the majority class", "high": ""}
    assert np.isnan(frame.loc["up", "p"]) and frame.loc["high", "verdict"] == "ahead"
    said = " ".join(claims_tables.claims_made(facts))
    assert "ninformative: UP (at the majority class)" in said
    bare = replace(facts, partitions={})
    assert bare.claims["reason"].tolist() == ["", ""], "nothing is said where it is not known"


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
    frame = claims.compare_methods(rows, runs, "accuracy", None, settings=settings_of(made))
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
    assert set(frame["p_corrected"]) == {2 / 1024}, "the same flips turn all three"
    assert frame["difference"].iloc[-1] == pytest.approx(0.04)
    table = claims_tables.paired_table(facts)
    assert table is not None
    assert "BASE" in table.caption
    assert [row.cells[0].text for row in table.rows] == ["BASE", "DOWN", "BASE"]
    *_, said = claims_tables.claims_made(facts)
    verdicts = said.rstrip(".").lower().split("; ")
    assert verdicts == ["ahead of base: up", "behind base: down", "ahead of down: up"]


def test_the_report_says_what_is_ahead_and_behind(tmp_path):
    write_plan(tmp_path, draws(tmp_path / "runs", SCORES, baseline="base"))
    facts = gather("small", tmp_path, tmp_path / "runs")
    *_, said = claims_tables.claims_made(facts)
    ahead, behind, uninformative = said.rstrip(".").lower().split("; ")
    assert (ahead, behind) == ("ahead of base: up", "behind base: down")
    assert uninformative.startswith("uninformative: same")


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
    assert table is not None and table.caption.startswith("All methods in pairs")
    pairs = [[row.head, row.cells[0].text] for row in table.rows]
    assert pairs == [["BASE", "DOWN"], ["UP", "BASE"], ["UP", "DOWN"]]
    monkeypatch.setattr(claims_tables, "MOST_PAIRS", 2)
    assert claims_tables.paired_table(facts) is None
