"""Numbers that users compute: `fl.report.load`, `fl.report.curves`, docs/guide/analyse.md."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import pytest
from make_results import clients, entry, plan, planned, write_plan, write_run, write_study

import fl.report
from fl.base.errors import DataError
from fl.report import result_files, summaries

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "analyse.md"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose ``results`` are those of the study ``quickstart``, and tables of it and Ditto.

    Ditto records both stages in every round; its shared model is half as good as the clients' own.
    """
    root = tmp_path_factory.mktemp("clone")
    made = write_study(root / "results", alphas=(0.1,))
    for seed in range(3):
        rows = []
        for number, split in itertools.product((1, 2), ("val", "test")):
            values = [0.1 * client + 0.1 * number + 0.01 * seed for client in range(8)]
            rows += clients(values, number, split, "personal")
            rows += clients([value / 2 for value in values], number, split)
        for lam in (1, 2):
            run = f"ditto{seed}{lam}"
            write_run(root / "results" / "runs", run, rows, rounds=2)
            place = {key: made["runs"][0][key] for key in ("partition", "partition_id")}
            choices = {"seed": seed, "title": "Ditto", "point": {"lam": lam}, **place}
            made["runs"].append(entry(run, "ditto", **choices))
    write_plan(root / "results", made)
    result_files.write(planned(made), root / "results" / "runs", root / "results")
    return root


def two(root: Path) -> dict[str, Any]:
    """A grid of two points, of which the second is chosen, beside a method without one."""
    results = root / "results"
    for run, val, test in (("p", 0.6, 0.9), ("q", 0.7, 0.5)):
        unseen = clients([0.25], split="unseen")
        rows = [*clients([test, test]), *clients([val] * 2, split="val"), *unseen]
        write_run(results / "runs", run, [*rows, *clients([2.0, 3.0], metric="loss")])
    write_run(results / "runs", "a", [*clients([0.5, 0.7])])
    made = plan(
        [
            entry("p", "fedprox", point={"mu": 0.1}, title="FedProx"),
            entry("q", "fedprox", point={"mu": 1}, title="FedProx"),
            entry("a", "fedavg", title="FedAvg"),
            entry("z", "fedavg", title="FedAvg", seed=1),
        ]
    )
    write_plan(results, made)
    return made


def test_the_main_table_is_one_line_of_python(tmp_path, monkeypatch):
    two(tmp_path)
    monkeypatch.chdir(tmp_path)
    main_table = fl.report.load("small")
    assert list(main_table.columns) == fl.report.COLUMNS
    told = main_table[["title", "point", "mean", "worst", "n_seeds", "n_missing"]].values.tolist()
    assert told == [["FedProx", "mu=1", 0.5, 0.5, 1, 0], ["FedAvg", "", 0.6, 0.5, 1, 1]]
    assert not (tmp_path / "results" / "tables").exists(), "reading writes nothing"
    assert fl.report.load("small", metric="loss")["mean"].tolist()[0] == 2.5
    with pytest.raises(DataError, match=r"metric: is .los.. Allowed: accuracy, loss"):
        fl.report.load("small", metric="los")
    [unseen] = fl.report.load("small", unseen=True).to_dict("records")
    assert (unseen["title"], unseen["mean"]) == ("FedProx", 0.25)


def test_curves_go_on_where_the_start_ended(tmp_path):
    costs = {"participants": 3, "traffic": [[1, 100, 10], [1, 200, 20]]}
    costs |= dict.fromkeys(("bytes_down", "bytes_up", "flops"), 1.0)
    costs |= dict.fromkeys(("state_client", "state_server"), 0)
    store = tmp_path / "results" / "runs"
    curve = [*clients([0.1, 0.3], 1), *clients([0.4, 0.6], 2)]
    write_run(store, "avg", [*curve, *clients([2.0, 2.0], metric="loss")], costs=costs)
    fine = [*clients([0.4, 0.6], 0), *clients([0.0, 0.0], 1)]
    write_run(store, "ft", [*fine, *clients([0.7, 0.9], 1, stage="personal")], start="avg")
    write_run(store, "lost", clients([0.7, 0.9], 1), start="gone")
    made = [entry("avg", "avg"), entry("ft", "ft"), entry("lost", "lost")]
    write_plan(tmp_path / "results", plan(made))
    frame = fl.report.curves("small", tmp_path / "results")
    assert list(frame) == summaries.CURVE_COLUMNS
    assert frame.query("metric == 'loss'")["value"].tolist() == [2.0, 2.0]
    told = frame.query("metric == 'accuracy'").drop_duplicates(["method", "round"], keep="last")
    # Each of `write_run` takes 1.5 seconds; `ft` has one round, after those of `avg`.
    assert told["seconds"].tolist() == [0.75, 1.5, 1.5, 3.0]
    lines = told[["method", "round", "value", "bytes"]].values.tolist()
    assert [line[:3] for line in lines] == [
        ["avg", 1, 0.3],
        ["avg", 2, 0.6],
        ["ft", 2, 0.6],
        ["ft", 3, 0.9],
    ], "what is behind `lost` is not known"
    assert [line[3] for line in lines[:2]] == [3 * 110, 3 * 330]
    assert pd.isna(lines[2][3]), "it does not tell what it sends"


def test_full_tables_are_read_without_a_store_and_those_of_another_plan_are_not(tmp_path):
    made = two(tmp_path)
    made["runs"].pop()
    write_plan(tmp_path / "results", made)
    store = tmp_path / "results" / "runs"
    result_files.write(planned(made), store, tmp_path / "results")
    means = json.loads((tmp_path / "results" / "metrics" / "small.json").read_text())
    assert means == {"fedprox": 0.5, "fedavg": pytest.approx(0.6)}
    store.rename(tmp_path / "away")
    assert fl.report.load("small", tmp_path / "results")["mean"].tolist() == [0.5, 0.6]
    write_plan(tmp_path / "results", made | {"hash": "another"})
    assert fl.report.load("small", tmp_path / "results")["n_missing"].tolist() == [1, 1]


def test_a_study_that_was_not_planned_is_one_message(tmp_path):
    two(tmp_path)
    with pytest.raises(DataError, match=r"nobody\.json: does not exist \(planned studies: small"):
        fl.report.load("nobody", tmp_path / "results")


def test_every_block_of_the_page_runs_as_it_is_written_there(clone, monkeypatch):
    monkeypatch.chdir(clone)
    mpl.use("agg")
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(blocks) == PAGE.read_text().count("```") // 2, "every block is Python"
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)
    assert (clone / "curve.pdf").stat().st_size > 5000
    assert (clone / "bars.pdf").stat().st_size > 5000
    tests = names["tests"]
    assert set(tests["method"]) == {"local", "fedavg", "fedprox", "scaffold", "ditto"}
    assert tests["p"].between(0, 1).all()
    assert (tests["p_corrected"] >= tests["p"]).all()
    assert set(tests["verdict"]) == {"not told apart"}, "of so few seeds"
    gain = tests.set_index("method")["difference"]
    assert gain["local"] < gain["fedavg"] < 0, "as the results were made"
    loaded = fl.report.load("quickstart").set_index("method")["mean"]
    last = names["final"].groupby(["method", "seed"])["value"].mean().groupby("method").mean()
    assert last.to_dict() == pytest.approx(loaded.to_dict())
    ends = names["over"].groupby("title")["mean"].last()
    titles = names["main"].set_index("title")["mean"]
    assert ends.to_dict() == pytest.approx(titles.to_dict())
    values = names["last"].groupby(["method", "seed", "client"])["value"].mean()["ditto"]
    assert values.groupby("seed").mean().tolist() == pytest.approx([0.55, 0.56, 0.57])


def test_the_page_lists_every_column(clone):
    told = set(re.findall(r"`([\w.<>]+)`", PAGE.read_text()))
    assert set(summaries.CURVE_COLUMNS) <= told
    told |= {"state", "rounds", "backend", "device"}  # Their names are plain words there.
    for end in ("parquet", "runs.parquet"):
        table = pd.read_parquet(clone / "results" / "tables" / f"quickstart.{end}")
        assert "hp.mu" in table
        assert set(table.columns) - told <= {"hp.mu", "hp.lam", "partition_id"}
    assert told >= set(fl.report.COLUMNS)
