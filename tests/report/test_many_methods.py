"""The report of a dozen and more methods: ranks, colours, folds, and columns that sort."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from browsing import CHROMIUM
from make_results import clients, entry, plan, write_plan, write_run

from fl import report
from fl.blocks.plotting import PRINT
from fl.report import figures, plots
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
