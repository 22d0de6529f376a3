"""Results in a notebook: the report's table, plots, pages, LaTeX."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from notebooks import CALL

import fl
from fl.base.errors import FedloomError
from fl.base.units import duration, size
from fl.notebook.display import WideTable

matplotlib.use("agg")

METHODS = {
    "local": None,
    "fedavg": None,
    "more": {"method": "fedavg", "rounds": 4},
}
TUNED = {"method": "finetune", "start": "fedavg", "rounds": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shown")


@pytest.fixture
def result(folder: Path, monkeypatch: pytest.MonkeyPatch) -> fl.Result:
    """Three methods on two partitions of two draws each; trained once."""
    monkeypatch.chdir(folder)
    partitions = [
        {"dirichlet": {"clients": 4, "alpha": alpha, "min_samples": 5, "seed": [0, 1]}}
        for alpha in (0.5, 5.0)
    ]
    call = {key: value for key, value in CALL.items() if key != "partition"} | {"rounds": 2}
    return fl.run(partitions=partitions, methods=METHODS, ours="more", **call)


def cells(page: str) -> dict[str, list[str]]:
    rows = re.findall(r"<tr[^>]*><th scope=.row.>(.*?)</th>(.*?)</tr>", page, re.S)
    return {head: re.findall(r"<td.*?>(.*?)</td>", row, re.S) for head, row in rows}


def test_a_result_is_the_table_of_its_report_with_costs(result: fl.Result) -> None:
    page = result._repr_html_()
    rows = cells(page)
    table, short = result.draws(), result.table()
    assert len(short) == len(table) / 2
    for method, head in (("local", "Local"), ("more", "more (ours)")):
        means = table[table["method"] == method]
        pooled = means.groupby(means["partition"].str.contains("alpha=5"))["mean"].agg(
            ["mean", "std"]
        )
        expected = [f"{100 * m:.1f} ± {100 * s:.1f}" for m, s in pooled.to_numpy()]
        merged = short[short["method"] == method]
        assert merged[["mean", "sd_seeds"]].to_numpy() == pytest.approx(pooled.to_numpy())
        assert set(merged["n_seeds"]) == {2} and "draw" not in merged
        shown = [re.sub(r"<[^>]*>", "", cell).replace("4 rounds", "") for cell in rows[head]]
        assert shown[:2] == expected, method
    runs = result.runs()
    local, fedavg = (runs[runs["method"] == method] for method in ("local", "fedavg"))
    assert rows["Local"][-1] == "0 B" and (local["bytes_up"] == 0).all()
    total = 2 * 4 * (fedavg["bytes_up"] + fedavg["bytes_down"]).mean()  # Rounds times clients.
    assert rows["FedAvg"][-1] == size(total)
    assert "<b>" in page and "href" not in page
    remarks = re.findall(r"<b>[^<]*</b><small>4 rounds</small>", page)
    assert len(remarks) == sum("<b>" in cell for cell in rows["more (ours)"][:2])


def test_what_a_method_starts_from_counts_in_its_costs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    methods = {"local": None, "fedavg": None, "fedavg-ft": TUNED}
    result = fl.run(methods=methods, **{**CALL, "rounds": 2, "seeds": 2})
    page = result._repr_html_()
    rows, runs = cells(page), result.runs().set_index("method")
    assert rows["FedAvg-FT"][-1] == rows["FedAvg"][-1] != "0 B"
    seconds = runs.loc[["fedavg", "fedavg-ft"], "seconds"].sum() / 2
    # Half a digit may be rounded up or down, as sums of another order differ by a bit.
    texts = {duration(seconds * factor) for factor in (1 - 1e-9, 1 + 1e-9)}
    assert rows["FedAvg-FT"][-2] in texts
    assert "in bold; no difference is significant" in page
    axes: Any = result.plot("cost")
    points = [container.get_label() for container in axes.containers]
    assert points == ["FedAvg", "FedAvg-FT"]
    [flat] = [line for line in axes.lines if line.get_label() == "Local (0)"]
    mean = result.table().set_index("method")["mean"]["local"]
    assert flat.get_ydata() == pytest.approx([100 * mean] * 2)


def test_a_result_has_the_tests_of_its_report_and_says_what_is_significant(
    result: fl.Result, folder: Path
) -> None:
    tests = result.tests()
    pairs = [{"more", "local"}, {"more", "fedavg"}, {"local", "fedavg"}]
    assert len(tests) == 6 and set(tests["unit"]) == {"draw"} and set(tests["n"]) == {2}
    table = result.draws()
    means = table.groupby(["method", table["partition"].str.contains("alpha=5")])["mean"].mean()
    for row in tests.to_dict("records"):
        assert {row["method"], row["other"]} in pairs
        is_even = "alpha=5" in row["partition"]
        one, other = (means[row[key], is_even] for key in ("method", "other"))
        assert row["difference"] == pytest.approx(one - other)
    paired = result.to_latex("paired")
    for value in tests["p_corrected"].dropna():
        assert value == 1 or f"{value:.2g}" in paired
    said = " ".join(str(result).split())
    assert "statistically significant" in said and "with 2 draws" in said
    assert "5 %" in said
    assert max(map(len, str(result).splitlines()[-5:])) <= 100 + len(str(folder))
    baseline = fl.run(methods=METHODS, baseline="fedavg", **{**CALL, "rounds": 2, "seeds": 6})
    tests = baseline.tests()
    assert tests[["method", "other"]].to_numpy().tolist() == [
        ["local", "fedavg"],
        ["more", "fedavg"],
    ]
    assert set(tests["verdict"]) <= {"ahead", "behind", "not told apart"} and set(tests["n"]) == {6}
    assert baseline.draws().equals(baseline.table())


def test_the_long_table_names_draws_if_there_are_several(result: fl.Result) -> None:
    table = result.draws()
    assert [*table][:5] == ["dataset", "partition", "model", "draw", "method"]
    seeds = table["partition"].str.extract(r"seed=(\d)")[0]
    assert table["draw"].tolist() == [f"partition seed {seed}" for seed in seeds]


def test_plots_are_axes_of_matplotlib(result: fl.Result) -> None:
    both = result.plot()
    assert isinstance(both, np.ndarray) and len(both) == 2
    chosen = result.study.settings[0].partition
    axes: Any = result.plot(partition=chosen)
    curves = result.curves().query("metric == 'accuracy' and method == 'more'")
    curves = curves[~curves["partition"].str.contains("alpha=5")]
    means = curves.groupby(["partition", "round"])["value"].mean().groupby("round").mean()
    [line] = [line for line in axes.lines if line.get_label() == "more (ours)"]
    assert line.get_ydata() == pytest.approx(100 * means.to_numpy())
    names = {text.get_text().replace("\n", " ") for text in axes.texts}
    assert names == {"Local", "FedAvg", "more (ours)"}
    clients: Any = result.plot("clients", partition=chosen)
    assert len(clients.get_yticks()) == 3
    few: Any = result.plot(methods=["more", "local"], metrics="loss", settings=chosen)
    assert {line.get_label() for line in few.lines} == {"more (ours)", "Local"}
    assert len(result.plot(metrics=["loss", "accuracy"])) == 4
    intervals: Any = result.plot("intervals", settings=chosen)
    assert "not tested" in [text.get_text() for text in intervals.get_legend().get_texts()]
    cells: Any = result.plot("settings", methods=["more", "local"])
    assert "accuracy (%)" in cells.get_xlabel() and "better" in cells.get_xlabel()
    figure = matplotlib.figure.Figure()
    own = figure.add_subplot()
    assert result.plot("cost", own, partition=chosen) is own
    assert own.get_xscale() == "log"
    for wrong, message in (
        (lambda: result.plot("curve"), "unknown kind 'curve'"),
        (lambda: result.plot(partition="iid"), "unknown partition 'iid'"),
        (lambda: result.plot(axes=own), "2 plots have one pair of axes"),
        (lambda: result.plot("ranks"), "5 settings or draws"),
        (lambda: result.to_latex("cost"), "unknown table 'cost'.*did you mean 'costs'"),
        (lambda: result.to_markdown("costs", methods=["local"]), "'costs'.*methods="),
        (lambda: result.to_latex(methods=["fedavgg"]), "unknown method 'fedavgg'.*'fedavg'"),
        (lambda: result.to_markdown(metrics="acuracy"), "unknown metric 'acuracy'.*'accuracy'"),
        (lambda: result.to_frame(settings="iid"), "unknown setting 'iid'"),
        (lambda: result.to_frame(best="significan"), "unknown value .*did you mean 'significant'"),
    ):
        with pytest.raises(FedloomError, match=message):
            wrong()


def test_a_report_is_a_page_and_a_table_is_latex(result: fl.Result) -> None:
    page = result.report()
    assert page.is_file() and "&lt;!doctype html&gt;" in page._repr_html_()
    assert page.parent._repr_html_() is None
    text = result.to_latex()
    assert r"\begin{table" in text and r"\toprule" in text and "(ours)" in text
    assert (page.parent / "notebook" / "costs.tex").read_text() == result.to_latex("costs")


def test_a_composed_table_is_the_same_in_all_formats(result: fl.Result) -> None:
    chosen: dict[str, Any] = {"methods": ["more", "Local"], "metrics": "loss", "best": "mean"}
    frame = result.to_frame(**chosen)
    assert [*frame["method"].unique()] == ["more", "local"] and len(frame) == 4
    assert [*frame.groupby("partition")["best"].sum()] == [1, 1], "of those that are shown"
    means = result.table("loss").set_index(["partition", "method"])["mean"]
    for row in frame.to_dict("records"):
        assert row["mean"] == means[row["partition"], row["method"]]
    markdown, latex = result.to_markdown(**chosen), result.to_latex(**chosen, siunitx=True)
    assert frame.attrs["caption"] in markdown and markdown.count("**") == 2 * frame["best"].sum()
    assert r"\bfseries" in latex or not frame["best"].any()
    assert result.to_markdown("costs").startswith("**") is False
    assert result.plot("settings").get_title() == ""


def test_a_printed_table_has_all_its_columns(result: fl.Result) -> None:
    table = result.table()
    for shown in (repr(table), repr(table.head(1)), table._repr_html_()):
        assert all(column in shown for column in table.columns)
    assert isinstance(table[["title", "mean"]], WideTable) and "..." not in repr(table)


def test_a_report_that_replaces_that_of_another_call_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.chdir(tmp_path)
    call = {**CALL, "rounds": 1}
    first = fl.run(name="mine", methods=["local"], **call)
    first.report()
    first.report()
    second = fl.run(name="mine", methods=["fedavg"], **call)
    assert not [w for w in recwarn if "replaced" in str(w.message)]
    with pytest.warns(fl.FedloomWarning, match=r"mine\.html: .*replaced.*name="):
        page = second.report()
    assert "FedAvg" in page.read_text()
