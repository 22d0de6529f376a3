"""The kept comparison: ranks and tests against numbers of papers and by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from make_results import clients, entry, plan, planned, write_partition, write_run
from scipy.stats import binomtest

from fl.base.errors import DataError
from fl.blocks.plotting import FIGURE_WIDTH, PRINT
from fl.cli import main
from fl.plan import plan as plans
from fl.plan import study_files
from fl.plan.study_plan import EntrySummary
from fl.report import claims, page, tables, track_page, tracks
from fl.report.cells import NOTHING
from fl.report.facts import read_partitions

ROOT = Path(__file__).parents[2]


SHARED = ("fedavg", "shared")
"""Methods that are scored by their shared model."""


def lines(scores: dict[str, list[float]], track: str = "one", **costs: float) -> pd.DataFrame:
    """Kept lines of methods by their accuracy in each draw."""
    plain = {"worst_tenth": 0.5, "bytes": 1000.0, "operations": 1e6}
    records = [
        {"track": track, "method": m, "title": m.upper(), "draw": d, "accuracy": value}
        | {
            "point": "lr=0.1",
            "numbers": "core 1",
            "environment": "",
            "rounding": float("nan"),
            "errors": round(100 * (1 - value), 1),
        }
        | {"stage": "global" if m in SHARED else "personal", "floor": np.nan}
        | plain
        | ({"bytes": costs[m]} if m in costs else {})
        for m, values in scores.items()
        for d, value in enumerate(values)
        if np.isfinite(value)
    ]
    return pd.DataFrame(records).astype(tracks.COLUMNS)[[*tracks.COLUMNS]]


TEN = [0.5 + 0.02 * i for i in range(10)]
SCORES = {
    "fedavg": [v - 0.05 for v in TEN],
    "fedavg-ft": TEN,
    "up": [v + 0.03 for v in TEN],
    "twin": [v + 0.03 for v in TEN],
}


def test_ranks_are_those_by_hand():
    scores = pd.DataFrame({"a": [3, 3, 2, 3], "b": [2, 2, 3, 2], "c": [1, 1, 1, 1]})
    assert tracks.ranks(scores).tolist() == [1.25, 1.75, 3]


def test_a_diverged_run_is_ranked_last():
    table = lines({"a": [0.5, 0.6], "b": [0.9, np.nan], "c": [0.1, 0.1]})
    assert tracks.ranks(tracks.scores_of(table, "one")).to_dict() == {"a": 1.5, "b": 2.0, "c": 2.5}


def test_comparisons_are_corrected_over_all_tracks_within_their_families():
    noise = np.random.default_rng(0).normal(0.01, 0.02, (2, 10))
    scores = SCORES | {"shared": [v - 0.04 for v in TEN], "noisy": [*(TEN + noise[0])]}
    two = {**scores, "noisy": [*(TEN + noise[1])]}
    table = pd.concat([lines(scores), lines(two, "two")], ignore_index=True)
    tests = tracks.compare_with_baselines(table)
    assert len(tests) == 10 and set(tests["n"]) == {10}
    by_key = {(r["track"], r["method"]): r for r in tests.to_dict("records")}
    others = {(r["method"], r["other"]) for r in tests.to_dict("records")}
    assert others == {("shared", "fedavg")} | {
        (method, "fedavg-ft") for method in ("fedavg", "up", "twin", "noisy")
    }
    assert by_key["one", "fedavg"]["verdict"] == "behind"
    assert by_key["one", "shared"]["verdict"] == "ahead"
    assert by_key["one", "twin"]["reason"] == "twin equals up"
    gains = [by_key[track, "noisy"]["differences"] for track in ("one", "two")]
    values = [[0.03] * 10, [-0.05] * 10] * 2 + [[*gain.values()] for gain in gains]
    assert by_key["one", "noisy"]["p_corrected"] == pytest.approx(
        claims.p_values(np.array(values))[1][4]
    ), "with all six of its family"
    assert any(by_key[t, "noisy"]["p"] < by_key[t, "noisy"]["p_corrected"] for t in ("one", "two"))


def test_tracks_count_by_their_signs_and_not_by_their_draws():
    """All six tracks are above 0. One track is no test."""
    noise = np.random.default_rng(3).normal(0, 0.05, (6, 10))
    tables = []
    for i, name in enumerate("abcdef"):
        scores = SCORES | {
            "mixed": [v + 0.1 * (-1) ** i + e for v, e in zip(TEN, noise[i], strict=True)]
        }
        scores |= {"rare": [v + 0.2 for v in TEN]} if name == "a" else {}
        tables.append(lines({k: v for k, v in scores.items() if k != "twin"}, name))
    table = pd.concat(tables, ignore_index=True)
    tests = tracks.compare_with_baselines(table)
    signs = tracks.sign_tests(tests)
    assert signs.loc["up", ["above", "n", "p_corrected"]].tolist() == [6, 6, 4 / 64]
    # Alone it is the sign test, but two more flips put all of `mixed` on one side.
    assert binomtest(6, 6).pvalue == 2 / 64
    assert signs.loc["mixed"].tolist() == [3, 6, 1]
    assert np.isnan(signs.loc["rare", "p_corrected"])
    heads = [row.head for row in track_page.overview(table, tests).rows]
    assert heads == ["UP", "MIXED", "FEDAVG (control)", "RARE"], "one track puts nothing first"


def test_near_one_a_track_is_uninformative():
    table = lines({"fedavg-ft": [0.991] * 6, "up": [0.995] * 6})
    assert tracks.compare_with_baselines(table)["reason"].tolist() == ["at the ceiling"]
    many = tracks.compare_with_baselines(table.assign(errors=2.0))
    assert many["reason"].tolist() == [""], "a mean over clients says nothing of errors"
    assert tracks.compare_with_baselines(table.assign(errors=np.nan))["reason"].tolist() == [""], (
        "not counted"
    )
    low = table.assign(errors=50.0, floor=50.5)
    assert tracks.compare_with_baselines(low)["reason"].tolist() == ["at the majority class"]
    assert tracks.compare_with_baselines(low.assign(floor=52.0))["reason"].tolist() == [""]


def test_the_front_has_what_nothing_cheaper_matches():
    scores = {"a": [0.5], "b": [0.7], "c": [0.6], "d": [0.8], "e": [0.8]}
    table = lines(scores, a=1, b=5, c=7, d=9, e=9)
    assert tracks.pareto_front(table, "bytes") == ["a", "b", "d"]


def test_ranks_within_a_budget_are_among_the_methods_that_keep_it() -> None:
    """The cheap one is best of three; the dear one is ahead of all, once its cost is allowed."""
    scores = {"fedavg-ft": [0.5, 0.7], "cheap": [0.6, 0.6], "dear": [0.9, 0.9], "lost": [0.4, 0.4]}
    table = lines(scores, **{"fedavg-ft": 100, "cheap": 101, "dear": 201, "lost": 1011})
    within = {limit: tracks.ranks_within(table, "one", "bytes", limit) for limit in (1, 2, 10)}
    assert within[1].to_dict() == {"cheap": 1.5, "fedavg-ft": 1.5}
    assert within[2].to_dict() == {"dear": 1.0, "cheap": 2.5, "fedavg-ft": 2.5}
    assert list(within[2]) == sorted(within[2]) and "lost" not in within[10]
    assert len(tracks.ranks_within(table, "one", "operations", 1)) == 4, "all cost the same"
    without = table[table["method"] != "fedavg-ft"]
    assert tracks.ranks_within(without, "one", "bytes", 10).empty
    first, *_ = track_page.budgets(table).rows
    assert [cell.text for cell in first.cells] == [
        *("1", "4", "DEAR 1.0, FEDAVG-FT 2.5, CHEAP 2.5; FEDAVG-FT 2.5"),
        *("2", "FEDAVG-FT 1.5, CHEAP 1.5; FEDAVG-FT 1.5"),
    ]
    [*_, last] = track_page.budgets(without).rows
    assert [cell.text for cell in last.cells] == ["10", "0", NOTHING, "0", NOTHING]


@pytest.mark.usefixtures("any_name")
def test_lines_of_runs_are_those_by_hand(tmp_path: Path) -> None:
    """Two clients; FedAvg 4 rounds of 10 + 5 bytes, fine-tuning goes on from its model for 2."""
    costs = {"participants": 2, "flops": 100.0, "flops_server": 3.0}
    costs |= {"bytes_down": 10, "bytes_up": 5, "state_client": 0, "state_server": 0}
    sending, silent = {"traffic": [[4, 10, 5]], **costs}, {"traffic": [], **costs}
    write_run(tmp_path, "a", clients([0.5, 0.7], round=4), costs=sending)
    rows = clients([0.8, 0.9], round=2, stage="personal")
    write_run(tmp_path, "b", rows, costs=silent, start="a")
    made = plan([entry("a", "fedavg-start"), entry("b", "ft", title="FT", point={"lr": 0.1})])
    write_partition(tmp_path, "part", {"train": [[4, 6], [8, 2]], "test": [[4, 6], [8, 2]]}, "ab")
    rows_and_runs = tables.collect(planned(made), tmp_path)
    partitions = read_partitions(tmp_path, rows_and_runs[1], {})
    table = tracks.measured_lines("one", {"ft": "fedavg-start"}, *rows_and_runs, partitions)
    (line,) = table.to_dict("records")
    made["runs"].append(entry("c", "local"))
    assert tracks.measured_lines("one", {}, *tables.collect(planned(made), tmp_path)).empty, (
        "its draw lacks a run"
    )
    assert line.pop("environment") == "python 3.11.9, torch 2.11.0"
    assert np.isnan(line.pop("rounding")), "as nobody has measured it"
    assert line | {"numbers": ""} == {
        "track": "one",
        "method": "ft",
        "title": "FT",
        "stage": "personal",
        "draw": 0,
        "accuracy": pytest.approx(0.85),
        "worst_tenth": 0.8,
        "errors": 3.0,
        "floor": 4 + 2,  # Each client has its own majority class.
        "bytes": 2 * 4 * 15.0,
        "operations": 2 * 203.0 + 4 * 203.0,
        "point": "lr=0.1",
        "numbers": "",
    }


@pytest.mark.usefixtures("any_name")
def test_bytes_of_a_track_are_those_of_the_rounds_that_runs_had(tmp_path: Path) -> None:
    """Two clients. FedAvg stopped after 2 of 4 planned rounds, fine-tuning after 1 of 3."""
    costs = {"participants": 2, "flops": 100.0, "flops_server": 3.0}
    costs |= {"bytes_down": 10, "bytes_up": 5, "state_client": 0, "state_server": 0}
    write_run(tmp_path, "a", clients([0.5], round=2), costs={"traffic": [[4, 10, 5]], **costs})
    rows, tuned = clients([0.8], round=1, stage="personal"), {"traffic": [[3, 1, 1]], **costs}
    write_run(tmp_path, "b", rows, costs=tuned, start="a")
    made = plan([entry("a", "fedavg-start"), entry("b", "ft")])
    [line] = tracks.measured_lines(
        "one", {"ft": "fedavg-start"}, *tables.collect(planned(made), tmp_path)
    ).to_dict("records")
    assert line["bytes"] == 2 * (2 * 15 + 1 * 2)
    assert line["operations"] == 2 * 203.0 + 1 * 203.0


def test_rounding_is_the_largest_change_of_a_line() -> None:
    table = lines(SCORES)
    lower, higher = (table.assign(accuracy=table["accuracy"] + gain) for gain in (-0.002, 0.001))
    measured = tracks.with_rounding(table, [higher, lower[1:].sample(frac=1, random_state=0)])
    expected = [0.001] + [0.002] * (len(table) - 1)
    assert measured["rounding"].tolist() == pytest.approx(expected)
    assert measured.drop(columns="rounding").equals(table.drop(columns="rounding"))


def test_what_is_kept_is_read_as_it_was_written(tmp_path: Path, capsys) -> None:
    (tmp_path / "published").mkdir()
    with pytest.raises(DataError, match="make compare"):
        tracks.read_published(tmp_path)
    table = lines(SCORES)
    tracks.write(tmp_path, table)
    pd.testing.assert_frame_equal(tracks.read_published(tmp_path), table)
    path = tmp_path / tracks.FILE
    older = pd.read_csv(path, keep_default_na=False).drop(columns="rounding")
    older.to_csv(path, index=False)
    pd.testing.assert_frame_equal(tracks.read_published(tmp_path), table)
    tracks.write(tmp_path, table.assign(rounding=0.004))
    assert tracks.read_published(tmp_path)["rounding"].eq(0.004).all()
    tracks.write(tmp_path, table)
    assert main.main(["tracks", "one", "--config", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "| UP | 1.5 | 62.0 (" in shown
    assert "| FEDAVG-FT | +3.0 (+3.0 to +3.0) | 0.002 | ahead |" in shown
    assert "Nemenyi" not in shown
    assert main.main(["tracks", "--config", str(tmp_path)]) == 0
    assert f"| UP | FEDAVG-FT | **+3.0 (ahead)** | 1 of 1 | {NOTHING} |" in capsys.readouterr().out
    assert main.main(["tracks", "one", "--budgets", "--config", str(tmp_path)]) == 0
    assert "| one | 1 | 4 | UP 1.5, TWIN 1.5, FEDAVG-FT 3.0; " in capsys.readouterr().out
    assert main.main(["tracks", "two", "--config", str(tmp_path)]) == 1
    assert "Allowed: one" in capsys.readouterr().err


def test_every_picture_of_the_page_is_drawn():
    table = pd.concat([lines(SCORES), lines(SCORES, "two")], ignore_index=True)
    drawn = track_page.pictures(table)
    assert {"overview", "one-ranks", "two-bytes", "one-operations"} <= drawn.keys()
    for name, picture in drawn.items():
        assert (b"UP" if "bytes" in name or "operations" in name else b"FEDAVG") in (
            picture.files()[".svg"]
        ), name
    assert "bootstrap" in page.to_markdown(
        track_page.ranking(table, tracks.compare_with_baselines(table), "one")
    )


def test_the_overview_has_a_panel_for_each_baseline_of_rows_equally_high():
    """A method that is not in a track has a dash there."""
    scores = {**SCORES, "shared": TEN}
    second = lines({name: values for name, values in scores.items() if name != "up"}, "two")
    table = pd.concat([lines(scores), second], ignore_index=True)
    tests = tracks.compare_with_baselines(table)
    canvas = track_page.heat_map(table, tests).draw(PRINT)
    *panels, _ = canvas.axes
    baselines = tracks.baselines(table)
    assert [axes.get_title("left") for axes in panels] == ["from FEDAVG-FT", "from FEDAVG"]
    assert len({axes.get_ylim() for axes in panels}) == 1
    assert sum(len(axes.get_yticklabels()) for axes in panels) == len(baselines)
    assert [text.get_text() for axes in panels for text in axes.texts] == [NOTHING]
    assert canvas.get_figwidth() > 2 * FIGURE_WIDTH


def test_every_entry_of_a_track_trains_a_client_for_as_many_steps() -> None:
    """A shared model leaves a fifth of the steps to its fine-tuning.

    Fine-tuning trains for an epoch unless its entry says otherwise, which once was sixty times the
    budget. One control is fine-tuned four times as long.
    """
    names = list(study_files.tracks(ROOT / "config").values())
    planned = plans.make(ROOT / "config", names, checked=False)
    for name in names:
        entries = planned.studies[name].entries
        shared = {start for entry in entries.values() if (start := entry.start)}
        shares = {label: 0.8 if label in shared else 1.0 for label in entries}
        shares |= {"fedavg-constant": 0.8, "knn-per": 0.8, "fedavg-ft-long": 1.6}
        budget = client_steps(entries, "local")
        for label in entries:
            assert client_steps(entries, label) / budget == shares[label], (name, label)


def client_steps(entries: Mapping[str, EntrySummary], label: str) -> int:
    """Steps of a client in a whole run, those of the run's start included."""
    entry = entries[label]
    earlier = client_steps(entries, entry.start) if entry.start else 0
    if entry.method == "knn-per":  # It keeps samples, and trains nothing.
        return earlier
    training = {key: values[0] for key, values in entry.training.items()}
    assert training["local_epochs"] is None, label
    [head_steps] = entry.values.get("head_steps", [0])
    rounds, local_steps = training["rounds"], training["local_steps"]
    return int(rounds * (local_steps + head_steps)) + earlier


def test_tracks_have_one_design() -> None:
    """Thirteen draws or twenty, each with its own training seed, and points of other draws."""
    for track, name in study_files.tracks(ROOT / "config").items():
        study = yaml.safe_load((ROOT / "config/studies/tracks" / f"{name}.yaml").read_text())
        [scheme] = study["partitions"][0].values()
        assert scheme["seed"] in ([*range(13)], [*range(20)])
        assert study["seeds"] == "per-draw" and study["training"]["schedule"] == "cosine"
        lists = [keys for keys in study["methods"].values() if any(map(is_list, keys.values()))]
        assert not lists, "a point for each entry"
        # The new speakers have the points of the others.
        source = f"tuning-{track}".replace("speakers", "vowel")
        tuned = yaml.safe_load((ROOT / "config/studies/tuning" / f"{source}.yaml").read_text())
        [tuning_scheme] = tuned["partitions"][0].values()
        assert not {*scheme["seed"]} & {*tuning_scheme["seed"]}, "draws of their own"


def is_list(value: Any) -> bool:
    """Whether a value of an entry is a grid."""
    return isinstance(value, list)
