"""The report of a dozen and more methods: ranks, colours, folds, and columns that sort."""

from __future__ import annotations

import math
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from browsing import CHROMIUM
from make_results import clients, entry, plan, write_plan, write_run
from scipy.special import fdtrc

from fl import report
from fl.base.errors import ConfigError, DataError
from fl.blocks.plotting import PRINT
from fl.report import figures, many_methods, plots
from fl.report.cells import Table
from fl.report.facts import Facts, gather
from fl.report.outline import blocks, outline
from fl.report.plots import mean_ranks, series_of

METHODS = [f"m{i}" for i in range(14)]
PLACES = ["dirichlet(clients=2, alpha=0.1)", "dirichlet(clients=2, alpha=0.5)"]


def value(method: int, place: int) -> float:
    """Method 13 is the best; 4 and 5 are equal in the first setting, 5 is better in the other."""
    return 0.3 + 0.02 * (method - (method == 5 and place == 0)) + 0.001 * place


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    results = tmp_path_factory.mktemp("many")
    runs = []
    for place, partition in enumerate(PLACES):
        for i, method in enumerate(METHODS):
            name = f"r{place}x{i}"
            # Method 13 had three rounds, the others two.
            rounds = 3 if i == 13 else 2
            rows = [
                row
                for number in range(1, rounds + 1)
                for row in clients([value(i, place) - 0.01 * (rounds - number)], round=number)
            ]
            write_run(results / "runs", name, rows, rounds=rounds)
            about = {"partition": partition, "partition_id": f"p{place}"}
            runs.append(entry(name, method, title=f"Method {i}", **about))
    write_plan(results, plan(runs, baseline="m0", ours="m3"))
    return gather("small", results, results / "runs")


def test_the_main_table_has_mean_ranks_and_says_whose_bold_number_had_more_rounds(facts):
    table = next(block for block in blocks(outline(facts)) if isinstance(block, Table))
    ranks = {row.head: row.cells[-1].text for row in table.rows}
    assert table.columns[-1].name == "rank"
    # In the first setting 4 and 5 share ranks 9 and 10; in the second 5 is ninth.
    assert ranks["Method 13"] == "1.0" and ranks["Method 0"] == "14.0"
    assert [ranks[f"Method {i}"] for i in (4, 5)] == ["9.8", "9.2"]
    best = [(row.head, c.remark) for row in table.rows for c in row.cells if c.best]
    assert best == [("Method 13", "3 rounds")] * 2 + [("Method 13", "")]
    assert "Method 3 (ours)" in ranks and table.is_main
    two = facts.runs[facts.runs["method"].isin(METHODS[:2])]
    assert mean_ranks(replace(facts, runs=two)).empty


def test_no_colour_is_that_of_two_methods_and_the_best_have_one(facts):
    series = series_of(facts)
    numbers = [number for number in series.colours.values() if number is not None]
    assert len(numbers) == len(set(numbers)) and max(numbers) < len(PRINT.series)
    assert series.in_colour == ("m0", "m3", "m9", "m10", "m11", "m12", "m13")
    styles = [series.style(PRINT, method)["color"] for method in METHODS]
    assert styles.count(PRINT.muted) == 14 - 7
    few = replace(facts, runs=facts.runs[facts.runs["method"].isin(METHODS[:8])])
    assert None not in series_of(few).colours.values()
    picture = next(b for b in blocks(outline(facts)) if b.name == "rounds")
    assert isinstance(picture, figures.Figure)
    drawn = picture.panels[0].picture.files()[".svg"].decode()
    assert "Grey: all other methods." in picture.note and not picture.legend
    assert all(name in drawn for name in ("Method 13", "(ours)")) and "Method 5" not in drawn


def test_figures_over_draws_and_the_legend_have_the_same_colours(tmp_path: Path) -> None:
    """Of twelve methods, other five are the best by ranks over draws than over settings."""
    runs, names = [], [f"m{i}" for i in range(12)]
    for alpha, draws in ((0.1, 1), (0.5, 3)):
        for draw in range(draws):
            for i, method in enumerate(names):
                # Methods with high numbers are good at alpha 0.5 alone, which has three draws.
                gain = i if alpha == 0.5 else 22 - 2.1 * i
                name = f"r{alpha}x{draw}x{i}".replace(".", "")
                sent = 4000 * (1 + 2 * (i % 2))
                costs = {"traffic": [[2, 4000, sent]], "participants": 2}
                costs |= {"bytes_down": 4000, "bytes_up": sent}
                rows = clients([0.2 + 0.01 * gain] * 2)
                write_run(tmp_path / "runs", name, rows, costs=costs)
                partition = f"dirichlet(clients=2, alpha={alpha}, seed={draw})"
                about = {"partition": partition, "partition_id": f"p{alpha}x{draw}"}
                runs.append(entry(name, method, title=f"Method {i}", **about))
    write_plan(tmp_path, plan(runs, baseline="m5", ours="m6"))
    study = gather("small", tmp_path, tmp_path / "runs")
    assert study.merged_draws is not None
    assert series_of(study) == series_of(study.merged_draws)
    sections = outline(study)
    page = report.texts(study, sections)[".html"]
    [figure] = [b for b in blocks(sections) if isinstance(b, figures.Figure) and b.legend]
    colours = series_of(study).colours
    shown = re.findall(r"fill:var\(--s(\d)\)\">[^\n]*?</svg>Method (\d+)", page)
    assert shown == [(str(colours[method]), method[1:]) for method in figure.legend]
    assert len({colour for colour, _ in shown}) == len(shown) == 7


def test_the_mean_of_the_baseline_is_a_line_through_all_rows(facts):
    from matplotlib.figure import Figure

    axes, frame = Figure().add_subplot(), plots.client_frame(facts)
    figures.draw_strips(
        PRINT, axes, frame[frame["partition"] == PLACES[1]], series_of(facts), "accuracy"
    )
    [line] = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert list(line.get_xdata()) == pytest.approx([100 * value(0, 1)] * 2)
    spread = next(b for b in blocks(outline(facts)) if b.name == "spread")
    assert "Method 0" in spread.note, "whose mean the line is"


def test_names_at_lines_do_not_cover_each_other():
    blocks_ = [(place, "m", 10.0) for place in (0.0, 1.0, 50.0, 52.0, 54.0, 100.0)]
    centres = figures._block_centres(blocks_, 100.0)
    assert centres == [5.0, 15.0, 42.0, 52.0, 62.0, 95.0]


def test_long_tables_are_folded_except_the_main_one(facts):
    page = report.texts(facts, outline(facts))[".html"]
    _, main, rest = re.split(r'<figure class="table" id="table-\d+">', page, maxsplit=2)
    assert '<details class="rows">' not in main
    assert '<details class="rows"><summary>All 28 rows</summary>' in rest
    assert page.count('<tr class="ours">') > 3


AREAS = """
0.763 0.768 0.771 0.798|0.599 0.591 0.590 0.569|0.954 0.971 0.968 0.967|0.628 0.661 0.654 0.657
0.882 0.888 0.886 0.898|0.936 0.931 0.916 0.931|0.661 0.668 0.609 0.685|0.583 0.583 0.563 0.625
0.775 0.838 0.866 0.875|1.000 1.000 1.000 1.000|0.940 0.962 0.965 0.962|0.619 0.666 0.614 0.669
0.972 0.981 0.97501 0.975|0.957 0.978 0.946 0.970
"""
"""Areas under the ROC curve of four classifiers on fourteen data sets (Demšar, JMLR 2006).

The paper's ranks are of areas with more digits: two of the last but one row are printed as 0.975.
"""


def test_mean_ranks_and_the_critical_difference_are_those_of_the_published_example():
    lines = AREAS.strip().replace("\n", "|").split("|")
    table = pd.DataFrame([[float(text) for text in line.split()] for line in lines])
    ranks = many_methods.ranks_of(table, "accuracy")
    assert ranks is not None and ranks.count == 14
    assert ranks.means.sort_index().round(3).tolist() == [3.143, 2.0, 2.893, 1.964]
    assert ranks.critical == pytest.approx(1.25, abs=0.005)
    # Equal values are allowed for, so that p is below that of the paper's 3.69 with (3, 39).
    assert 0.01 < ranks.p < fdtrc(3, 39, 3.69) < 0.05
    # The paper finds no pair for which Nemenyi's test is powerful enough.
    assert ranks.groups == [(0, 3)]
    losses = many_methods.ranks_of(1 - table, "loss")
    assert losses is not None and losses.means.equals(ranks.means)
    assert many_methods.ranks_of(table[:4], "accuracy") is None
    assert many_methods.ranks_of(table[[0, 1]], "accuracy") is None
    holes = table.assign(lost=math.nan)
    assert many_methods.ranks_of(holes, "accuracy").count == 14
    alike = many_methods.ranks_of(table * 0, "accuracy")
    assert alike is not None and math.isnan(alike.p) and alike.groups == [(0, 3)]


def test_groups_are_as_large_as_can_be_and_none_is_part_of_another():
    means = pd.Series([1.0, 1.5, 2.9, 3.0, 6.0])
    ranks = many_methods.Ranks(means, 10, 0.001, 2.0)
    assert ranks.groups == [(0, 2), (1, 3)]
    assert many_methods.Ranks(means, 10, 0.2, 2.0).groups == [(0, 4)]
    assert many_methods.Ranks(means, 10, 0.0, 0.05).groups == []


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """Nine methods in three settings of six draws; method 8 is the best, 1 equals the baseline."""
    results = tmp_path_factory.mktemp("drawn")
    runs = []
    for alpha in (0.1, 0.5, 1.0):
        for draw in range(6):
            for i in range(9):
                name = f"r{alpha}x{draw}x{i}".replace(".", "")
                value = 0.3 + 0.05 * max(i, 1) + 0.001 * ((draw * i) % 5) * (i > 1)
                write_run(results / "runs", name, clients([value] * 2))
                partition = f"dirichlet(clients=2, alpha={alpha}, seed={draw})"
                about = {"partition": partition, "partition_id": f"p{alpha}x{draw}"}
                title = f"Method {i}" + ", a name of many words, longer than three lines of it" * i
                runs.append(entry(name, f"m{i}", title=title, **about))
    write_plan(results, plan(runs, baseline="m0"))
    study = gather("small", results, results / "runs")
    assert study.merged_draws is not None
    return study.merged_draws


def test_a_report_of_many_methods_has_intervals_a_map_and_ranks(drawn: Facts):
    made = {figure.name: figure for figure in many_methods.overview(drawn)}
    assert [*made] == ["intervals", "map", "ranks"]
    assert [len(figure.panels) for figure in made.values()] == [3, 1, 3]
    for figure in made.values():
        for panel in figure.panels:
            assert "<svg" in panel.picture.svg and panel.alt
    assert "6 draws" in made["ranks"].caption and "independent" in made["ranks"].note
    names = [block.name for block in blocks(outline(drawn)) if isinstance(block, figures.Figure)]
    assert names[:3] == ["intervals", "map", "ranks"]
    few = replace(drawn, runs=drawn.runs[drawn.runs["method"].isin([f"m{i}" for i in range(7)])])
    assert many_methods.overview(few) == ()


def test_intervals_are_sorted_and_marked_by_verdict(drawn: Facts):
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    many_methods.interval_drawings(drawn, drawn.settings)[0].draw(PRINT, axes)
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[0].startswith("Method 8") and names[-2:] != names[:2]
    assert max(name.count("\n") for name in names) == 2 and "…" in names[0]
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words == ["ahead", "not tested", "baseline"], "method 1 equals the baseline"
    pairs = replace(drawn, plan=replace(drawn.plan, baseline=None))
    axes = Figure().add_subplot()
    many_methods.interval_drawings(pairs, pairs.settings)[0].draw(PRINT, axes)
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words[0] == "behind" and words[-1] == "best"


def test_the_map_has_differences_from_the_baseline_in_bold_where_told(drawn: Facts):
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    drawing = many_methods.map_drawing(drawn, drawn.settings)
    assert drawing is not None
    drawing.draw(PRINT, axes)
    cells = {text.get_text(): text.get_weight() for text in axes.texts}
    assert len(axes.texts) == 8 * 3 and cells["0.0"] == "normal"
    assert {weight for text, weight in cells.items() if text != "0.0"} == {"bold"}


def test_a_plot_of_many_methods_is_drawn_or_says_why_not(drawn: Facts, facts: Facts):
    import matplotlib

    matplotlib.use("agg")
    for kind, count in (("intervals", 3), ("settings", 1), ("ranks", 3)):
        assert np.size(plots.plot(drawn, kind, drawn.settings)) == count
    with pytest.raises(DataError, match="5 settings or draws"):
        plots.plot(facts, "ranks", facts.settings)
    with pytest.raises(ConfigError, match="did you mean 'intervals'"):
        plots.plot(drawn, "interval", drawn.settings)


CLICKS = """<script>
addEventListener("load", () => {
  const table = document.querySelector(".table table");
  const button = table.tHead.rows[0].cells[1].querySelector("button");
  const heads = () => [...table.tBodies[0].rows].map((row) => row.cells[0].innerText).join("|");
  const found = [heads()];
  for (const _ of [1, 2, 3]) { button.click(); found.push(heads()); }
  table.tHead.rows[0].cells[0].querySelector("button").click();
  found.push(heads());
  document.body.innerHTML = `<pre id="found">${found.join(";")}</pre>`;
});
</script></body>"""


FILTERS = """<script>
addEventListener("load", () => {
  const found = [];
  for (const [place, words] of [[0, "METHOD 1"], [0, "nothing"], [0, ""], [-1, "0.5 1"]]) {
    const block = [...document.querySelectorAll(".row-filters")].at(place);
    const [field, count] = block.children;
    const table = block.parentElement.querySelector("table");
    field.value = words;
    field.dispatchEvent(new Event("input"));
    const rows = [...table.tBodies].flatMap((body) => [...body.rows]).filter((row) => !row.hidden);
    found.push(`${count.textContent}: ${rows.map((row) => row.cells[0].textContent).join("|")}`);
  }
  document.body.innerHTML = `<pre id="found">${found.join(";")}</pre>`;
});
</script></body>"""


def in_browser(facts: Facts, script: str, folder: Path) -> list[str]:
    """What a script at the end of the report's page finds."""
    page = report.texts(facts, outline(facts))[".html"].replace("</body>", script)
    (folder / "page.html").write_text(page)
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000"]
    command += [(folder / "page.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    [found] = re.findall(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    return found.split(";")


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: chromium)")
def test_the_head_of_a_column_sorts_its_rows_down_up_and_as_they_were(facts, tmp_path: Path):
    found = in_browser(facts, CLICKS, tmp_path)
    first, down, up, same, by_name = (text.split("|") for text in found)
    assert first[0] == "Method 0" and first == same
    assert down[:2] == ["Method 13", "Method 12"] and down[-1] == "Method 0"
    assert up[:2] == ["Method 0", "Method 1"] and up[-1] == "Method 13"
    assert by_name == sorted(first, reverse=True)


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: chromium)")
def test_long_tables_have_a_field_that_filters_rows_and_their_groups(facts, tmp_path: Path):
    some, none, all_, grouped = in_browser(facts, FILTERS, tmp_path)
    names = [f"Method {i}" for i in (1, 10, 11, 12, 13)]
    assert some == f"5 of 14 rows: {'|'.join(names)}"
    assert none == "0 of 14 rows: "
    assert all_.startswith("14 of 14 rows: Method 0|")
    count, shown = grouped.split(": ")
    heads = [head for head in shown.split("|") if not head.startswith("Method")]
    assert len(heads) == 1 and "0.5" in heads[0] and "0.1" not in shown
    assert count == f"{len(shown.split('|')) - 1} of 26 rows"
