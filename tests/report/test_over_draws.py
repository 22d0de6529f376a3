"""Where data or partitions are drawn, tables and figures are over draws."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from make_results import clients, entry, plan, write_plan, write_run

from fl import report
from fl.cli import main
from fl.report import summaries
from fl.report.cells import Table
from fl.report.facts import gather
from fl.report.figures import Figure
from fl.report.outline import blocks, outline

ALPHAS = (0.1, 0.5)
GAINS = {"fedavg": 0.0, "ditto": 0.05, "grid": 0.02}
"""Above FedAvg, in every run."""


def place(alpha: float, draw: int) -> str:
    return f"dirichlet(clients=2, alpha={alpha}, seed={draw})"


def score(alpha: float, draw: int, seed: int) -> float:
    """FedAvg's: by draw 50, 60, ... 100 % less 20 at alpha .1, and one point apart by seed."""
    return 0.5 + 0.1 * draw - 0.2 * (alpha == 0.1) + 0.01 * seed


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions of six draws each, two training seeds; the second point of `grid` is chosen
    in three draws of each.
    """
    folder, runs, titles = tmp_path_factory.mktemp("drawn"), [], {}
    for alpha in ALPHAS:
        for draw in range(6):
            titles[place(alpha, draw)] = f"Dirichlet {alpha}, {draw}"
            for seed in (0, 1):
                for method, gain in GAINS.items():
                    for point in range(1 + (method == "grid")):
                        name = f"{method}-{alpha}-{draw}-{seed}-{point}".replace(".", "")
                        accuracy = min(1.0, score(alpha, draw, seed) + gain)
                        better = point == draw % 2
                        rows = clients([0.3], 1) + clients([accuracy, accuracy])
                        rows += clients([0.8 if better else 0.7] * 2, split="val")
                        write_run(folder / "runs", name, rows)
                        chosen = {"point": {"mu": point}} if method == "grid" else {}
                        about = {"partition": place(alpha, draw), "partition_id": f"p{alpha}{draw}"}
                        runs.append(entry(name, method, seed=seed, **about, **chosen))
    write_plan(folder, plan(runs, baseline="fedavg", titles={"partition": titles}))
    return folder


def tables(results: Path) -> dict[str, Table]:
    drawn = blocks(outline(gather("small", results, results / "runs")))
    return {block.name: block for block in drawn if isinstance(block, Table)}


def cells(table: Table) -> list[list[str]]:
    return [[row.head, *(cell.full_text for cell in row.cells)] for row in table.rows]


def test_the_main_table_is_over_draws_and_says_so(results: Path) -> None:
    table = tables(results)["draws"]
    assert [column.name for column in table.columns] == [
        "Method",
        *(f"Dirichlet {a}" for a in ALPHAS),
        "rank",
    ]
    # Draws have 30.5, 40.5, ... 80.5 %, and 50.5, ... 90.5 and 100 %, as means over two seeds.
    high = np.std([50.5, 60.5, 70.5, 80.5, 90.5, 100], ddof=1)
    spreads = f"± {np.std(10 * np.arange(6), ddof=1):.1f}", f"± {high:.1f}"
    assert cells(table)[0][:3] == ["fedavg", f"55.5 {spreads[0]}", f"75.4 {spreads[1]}"]
    assert "over 6 draws of data or partition" in table.caption


def test_each_draw_is_folded_with_its_own_seeds(results: Path) -> None:
    table = tables(results)["settings"]
    assert len(table.columns) == 13 and table.columns[1].name == "Dirichlet 0.1\npartition seed=0"
    assert cells(table)[0][1] == "30.5 ± 0.7"


def test_differences_have_a_column_for_each_partition(results: Path) -> None:
    table = tables(results)["differences"]
    # Equal differences in all six draws have p 1/32, and the same flips turn both methods.
    assert cells(table) == [["ditto", "+5.0 (ahead)", "+4.2"], ["grid", "+2.0 (ahead)", "+1.7"]]
    assert "all 4 comparisons" in table.caption and "mean over draws" in table.caption


def test_what_a_draw_chose_is_counted(results: Path) -> None:
    [first, second] = cells(tables(results)["grids"])[1:3]
    assert first[1] == "mu=0" and second[1] == "mu=1"
    assert first[-2:] == ["6", "in 3"] and second[-2:] == ["6", "in 3"]
    assert first[2] == "75.0 ± 5.5", "0.8 in three draws, 0.7 in the others"


def test_other_tables_and_curves_are_over_draws(results: Path) -> None:
    clients = cells(tables(results)["clients"])
    assert [row[0] for row in clients].count("fedavg") == len(ALPHAS)
    [curves] = [
        block
        for block in blocks(outline(gather("small", results, results / "runs")))
        if isinstance(block, Figure) and block.name == "rounds"
    ]
    assert [panel.title for panel in curves.panels] == [f"Dirichlet {alpha}" for alpha in ALPHAS]
    assert "deviation over draws" in curves.caption


def test_the_main_table_as_a_frame_has_a_row_for_all_draws(results: Path) -> None:
    table = report.load("small", results)
    assert [*table] == report.COLUMNS and len(table) == 6
    first, _, grid = table[table["partition"].str.contains("0.1")].to_dict("records")
    assert (round(first["mean"], 3), first["n_seeds"], first["title"]) == (0.555, 6, "fedavg")
    assert first["sd_seeds"] == pytest.approx(np.std(np.arange(6) / 10, ddof=1))
    assert grid["point"] == "mu=0; mu=1"
    long = report.draws("small", results)
    assert len(long) == 6 * len(table) and long["draw"].nunique() == 6
    of_draws = long[(long["method"] == "fedavg") & long["partition"].str.contains("0.1")]
    assert of_draws["mean"].mean() == pytest.approx(first["mean"])


def test_a_draw_that_is_not_there_is_said(results: Path, tmp_path: Path) -> None:
    left_out = shutil.ignore_patterns("tables")
    fewer = shutil.copytree(results, tmp_path / "fewer", ignore=left_out)
    for seed in (0, 1):
        shutil.rmtree(fewer / "runs" / f"ditto-01-0-{seed}-0")
    ditto = cells(tables(fewer)["draws"])[1]
    assert ditto[1].startswith("65.5 ± ") and ditto[1].endswith("(2 missing)")


def test_show_is_over_draws(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = f"results: {results}\nstore: {results / 'runs'}\n"
    (results / "config.yaml").write_text(f"studies: [small]\n{places}")
    assert main.main(["show", "small", "--planned", "--config", str(results)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[1] == "digits / Dirichlet 0.1 / mlp: test accuracy (%)"
    assert shown[2].replace("  ", " ").endswith("sd over draws worst client draws")
    assert shown[3].split() == ["fedavg", "55.5", "18.7", "55.5", "6"]


def test_one_row_for_all_draws_by_hand() -> None:
    rows = [("d(seed=0)", "p", 0.4, True, 1, "x"), ("d(seed=1)", "p", 0.6, True, 0, "y")]
    columns = ["dataset", "partition", "mean", "selected", "n_missing", "stage"]
    frame = pd.DataFrame(rows, columns=columns).assign(model="m", method="f", sd=0.1, n_seeds=3)
    settings = {(f"d(seed={seed})", "p", "m"): ("d", "p", "m") for seed in (0, 1)}
    [row] = summaries.over_draws(frame, settings, {"mean": "sd"}).to_dict("records")
    assert row == {
        **{"dataset": "d", "partition": "p", "model": "m", "method": "f", "stage": "x"},
        **{"mean": pytest.approx(0.5), "sd": pytest.approx(0.2 / np.sqrt(2))},
        **{"selected": 2, "n_missing": 1, "n_seeds": 2},
    }


def test_models_on_the_same_draws_have_the_same_partitions(tmp_path: Path) -> None:
    runs = []
    for model in ("mlp", "cnn"):
        for draw in range(2):
            write_run(tmp_path / "runs", f"{model}{draw}", clients([0.5, 0.5]))
            about = {"model": model, "partition": place(0.1, draw), "partition_id": f"p{draw}"}
            runs.append(entry(f"{model}{draw}", "fedavg", **about))
    write_plan(tmp_path, plan(runs))
    facts = gather("small", tmp_path, tmp_path / "runs").merged_draws
    assert facts is not None
    known: Any = {"p0": "first", "p1": "second"}
    facts = replace(facts, partitions=known)
    assert [facts.partitions_of(setting) for setting in facts.settings] == [["first", "second"]] * 2
