"""The report says what the tables say, in every form, and stands on its own."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import partition
import pytest
from make_results import clients, entry, plan, write_partition, write_plan, write_run
from matplotlib.image import imread

from fl import report
from fl.report import figures, partitions, summaries
from fl.report.cells import NOTHING
from fl.report.facts import gather
from fl.report.method_tables import main_table
from fl.report.outline import outline
from fl.report.partitions import read


class Page(HTMLParser):
    """Ids, links, and every table as rows of cell texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] | None = None
        self._cell: list[str] | None = None
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes["href"]] if "href" in attributes else []
        if tag == "table":
            self._rows = self.tables.setdefault(attributes.get("class", "runs"), [])
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._cell = []

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._rows[-1].append(" ".join(self._cell))
            self._cell = None

    def handle_data(self, data):
        self.text += data
        if self._cell is not None and data.strip():
            self._cell.append(data.strip())


def made(results: Path, study: str = "small") -> tuple[Page, str, str]:
    facts = gather(study, results, results / "runs")
    html, md, latex, _ = report.texts(facts, outline(facts)).values()
    return Page(html), md, latex


@pytest.fixture(scope="module")
def full(built) -> Path:
    return built("quickstart")


@pytest.fixture(scope="module")
def page(full: Path) -> Page:
    return Page((full / "report" / "quickstart.html").read_text())


def frames(results: Path, study: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    folder = results / "tables"
    return pd.read_parquet(folder / f"{study}.parquet"), pd.read_parquet(
        folder / f"{study}.runs.parquet"
    )


def test_main_table_shows_the_rounding_of_the_parquet_tables_in_all_three_forms(full, page):
    rows, runs = frames(full, "quickstart")
    summary = summaries.summarise(rows, runs, "accuracy")
    md = (full / "report" / "quickstart.md").read_text().replace("**", "")
    latex = re.sub(r"\\textbf\{([^}]*)\}", r"\1", (full / "report" / "quickstart.tex").read_text())
    titles = dict(zip(runs["method"], runs["title"], strict=True))
    shown = {row[0]: row[1:] for row in page.tables["settings"][1:8]}
    assert len(summary) == 10
    for method, group in summary.groupby("method", sort=False):
        cells = [
            f"{100 * m:.1f} ± {100 * s:.1f}"
            for m, s in zip(group["mean"], group["sd_seeds"], strict=True)
        ]
        *values, rank = shown[titles[method]]
        assert [re.sub(r" (1 missing|30 \+ 1 rounds)$", "", cell) for cell in values] == cells
        means = summary.pivot_table("mean", "partition", "method")
        assert rank == f"{means.rank(axis=1, ascending=False).mean()[method]:.1f}"
        plain = [
            c + (" (1 missing)" if n else " (30 + 1 rounds)" if "rounds" in value else "")
            for c, n, value in zip(cells, group["n_missing"], values, strict=True)
        ]
        assert f"| {titles[method]} | {' | '.join(plain)} |" in md
        set_close = f"{titles[method]} & {' & '.join(plain)} & ".replace(" ± ", r"\,$\pm$\,")
        assert set_close in latex


def test_every_link_has_its_anchor_and_every_id_is_there_once(page):
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert all(link.startswith("#") for link in page.links)
    assert sum(link.startswith("#runs-") for link in page.links) > 50


def test_the_page_says_what_its_seeds_can_show(full, page):
    md = (full / "report" / "quickstart.md").read_text()
    for sentence in ("if training is repeated", "None of these differences is statistically"):
        assert sentence in page.text and sentence in md


def test_the_runs_behind_a_cell_are_listed_with_state_and_folder(full, page):
    _, runs = frames(full, "quickstart")
    listed = {row[0]: row for row in page.tables["runs"]}
    for run, state in zip(runs["run"], runs["state"], strict=True):
        assert state in listed[run]
        assert (f"results/runs/{run}" in listed[run]) == (state != "missing")


def test_missing_and_diverged_runs_are_named(full, page):
    _, runs = frames(full, "quickstart")
    top = page.text[: page.text.index("Table 1.")]
    md = (full / "report" / "quickstart.md").read_text()
    named = runs[runs["state"] != "complete"]
    assert len(named) == 3
    for run in named["run"]:
        assert run in top and f"`{run}`" in md
    assert "39 complete" in top and "2 diverged" in top and "1 missing" in top


def test_the_page_needs_nothing_from_outside(full):
    text = (full / "report" / "quickstart.html").read_text()
    assert not re.search(r"https?:|//[a-z]|@import|<link|<iframe|\bsrc=", text)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)", text))


def test_figures_and_tables_are_described(page):
    pictures = [a for tag, a in page.tags if tag == "svg" and a.get("aria-hidden") != "true"]
    assert len(pictures) == 6
    assert all(a["role"] == "img" and len(a["aria-label"]) > 40 for a in pictures)
    kinds = [tag for tag, _ in page.tags]
    assert kinds.count("figure") == kinds.count("figcaption") > 10
    assert all("scope" in a for tag, a in page.tags if tag == "th")


def small(results: Path, *runs: dict, **choices) -> None:
    write_plan(results, plan(runs, **choices))


def test_majority_shares_are_those_counted_by_hand(tmp_path):
    write_partition(
        tmp_path,
        "part",
        {
            # Client 0's training majority is class 0, client 1's class 1, the population's class 1.
            "train": [[3, 1], [0, 4]],
            "test": [[1, 3], [2, 6]],
        },
        ["zero", "one"],
    )
    who = read(tmp_path, "part", "digits · iid")
    assert who.majority().tolist() == [0.25, 0.75]
    assert who.majority(population=True).tolist() == [0.75, 0.75]
    counts = {"train": [[5, 1], [1, 9], [8, 0]], "test": [[3, 1], [2, 2], [4, 0]]}
    write_partition(tmp_path / "other", "part", counts, ["a", "b"], unseen=[2])
    who = read(tmp_path / "other", "part", "digits · x")
    assert who.majority().to_dict() == {0: 3 / 4, 1: 2 / 4}
    assert who.majority(all_samples=True).to_dict() == {0: 5 / 8, 1: 3 / 8}
    # All clients' training majority is class b.
    assert who.majority(population=True).to_dict() == {0: 1 / 4, 1: 2 / 4}
    assert who.majority(all_samples=True, population=True).to_dict() == {0: 3 / 8, 1: 3 / 8}
    write_run(tmp_path / "runs", "a", clients([0.5, 0.7]))
    small(tmp_path, entry("a", "fedavg"))
    page, md, latex = made(tmp_path)
    shown = {row[0]: row[1] for row in page.tables["settings"]}
    assert shown["Majority class of each client"] == "50.0"
    assert shown["Majority class of the population"] == "75.0"
    assert "| Majority class of each client | 50.0 |" in md
    assert r"Majority class of the population\strut} & 75.0 \\" in latex


def test_the_populations_majority_class_is_scored_as_models_are(tmp_path):
    """One client has 270 of 300 samples of class 0, four of 30 have none of it: a model that always
    says 0 has a mean of .9 and four times 0, which is 18 %, though it is right in 64 % of samples.
    """
    counts = [[270, 15, 15], *[[0, 15, 15]] * 4]
    write_partition(tmp_path, "part", {"train": counts, "test": counts}, "abc")
    write_run(tmp_path / "runs", "a", clients([0.9, 0, 0, 0, 0]))
    small(tmp_path, entry("a", "fedavg"))
    facts = gather("small", tmp_path, tmp_path / "runs")
    [method, _, population] = main_table(facts).rows
    assert method.cells[0].text == population.cells[0].text == "18.0"
    together = replace(facts, plan=replace(facts.plan, test="global"))
    assert main_table(together).rows[-1].cells[0].text == "64.3"


def test_before_after_and_gain_are_those_worked_out_by_hand(tmp_path):
    for seed, (before, after) in enumerate([(0.5, 0.7), (0.6, 0.7)]):
        rows = clients([before, before], round=0)
        rows += clients([after - 0.1, after + 0.1], round=1, stage="personal")
        write_run(tmp_path / "runs", f"s{seed}", rows)
    small(tmp_path, entry("s0", "ft", seed=0), entry("s1", "ft", seed=1))
    page, *_ = made(tmp_path)
    assert page.tables["personalisation"][1] == [
        "ft",
        "55.0 ± 7.1",
        "70.0 ± 0.0",
        "+15.0 ± 7.1",
        "100.0",
    ]


@pytest.mark.parametrize("versions", [("2.13.0", "2.13.0"), ("2.12.0", "2.13.0")])
def test_a_report_says_that_its_runs_are_of_several_environments(tmp_path, versions):
    for seed, version in enumerate(versions):
        write_run(tmp_path / "runs", f"r{seed}", clients([0.5]), versions={"torch": version})
    small(tmp_path, *(entry(f"r{seed}", "fedavg", seed=seed) for seed in (0, 1)))
    page, *_ = made(tmp_path)
    assert ("These are 2 environments" in page.text) == (len({*versions}) == 2)


@pytest.mark.parametrize(
    ("arithmetics", "count"),
    [(["portable"] * 2, 1), (["native"] * 2, 2), (["portable", "native"], 2)],
)
def test_processors_are_one_environment_for_portable_runs(tmp_path, arithmetics, count):
    for seed, (name, processor) in enumerate(zip(arithmetics, ("AMD", "Intel"), strict=True)):
        execution = {"backend": "stacked", "device": "cpu", "threads": 1, "arithmetic": name}
        environment = {"processor": processor, "instructions": "AVX2"}
        rows = clients([0.5])
        write_run(tmp_path / "runs", f"r{seed}", rows, execution=execution, environment=environment)
    small(tmp_path, *(entry(f"r{seed}", "fedavg", seed=seed) for seed in (0, 1)))
    page, *_ = made(tmp_path)
    assert ("These are 2 environments" in page.text) == (count == 2)


@pytest.mark.parametrize("names", [("", ""), ("", "a" * 16)])
def test_a_report_counts_runs_that_were_trained_under_other_names(tmp_path, names):
    for seed, name in enumerate(names):
        write_run(tmp_path / "runs", f"r{seed}", clients([0.5]), trained_as=name)
    small(tmp_path, *(entry(f"r{seed}", "fedavg", seed=seed) for seed in (0, 1)))
    page, *_ = made(tmp_path)
    assert ("1 of 2 runs were trained under other names" in page.text) == any(names)
    [path] = (tmp_path / "tables").glob("*.runs.parquet")
    runs = pd.read_parquet(path)
    assert runs["trained_as"].fillna("").tolist() == list(names)


def test_measured_beside_published_in_percent_or_as_a_fraction(tmp_path):
    write_run(tmp_path / "runs", "a", clients([0.5, 0.7]))
    cell = {"source": "A", "table": "1", "row": "r", "column": "c", "note": "", "sd": None}
    cell |= {"method": "fedavg", "setting": entry("a", "x")["partition"]}
    published = [cell | {"value": 62.5, "sd": 1.0}, cell | {"value": 0.6}]
    published.append(cell | {"value": 50, "method": "moon"})
    published.append(cell | {"value": 55, "setting": "digits"})
    small(tmp_path, entry("a", "fedavg"), published=published)
    page, *_ = made(tmp_path)
    shown = [row[3:6] for row in page.tables["published"][1:]]
    assert shown[0] == ["60.0", "62.5 ± 1.0", "\N{MINUS SIGN}2.5"]
    assert shown[1] == ["60.0", "60.0", "0.0"]
    assert shown[2] == ["– not in this study", "50.0", "–"]  # noqa: RUF001
    assert shown[3] == ["60.0", "55.0", "+5.0"]


def test_published_by_domain_by_round_and_by_what_a_run_takes(tmp_path):
    counts = {"train": [[5, 1], [1, 5]], "test": [[2, 1], [1, 2]]}
    write_partition(tmp_path, "part", counts, ["a", "b"], domains=["photo", "sketch"])
    costs = {"traffic": [[2, 4000, 8000]], "participants": 2, "bytes_down": 4000, "bytes_up": 8000}
    for run, values in (("a", [0.4, 0.6]), ("b", [0.6, 0.8])):
        rows = clients(values, round=2) + clients([value - 0.1 for value in values], round=1)
        write_run(tmp_path / "runs", run, rows, costs=costs)
    cell = {"source": "A", "table": "1", "row": "r", "column": "c", "note": "", "sd": None}
    cell |= {"method": "b", "setting": "digits", "model": "mlp", "value": 70.0}
    told = [
        {"domain": "sketch"},
        {"round": 1},
        {"metric": "rounds to a", "value": 3},
        {"metric": "speedup to a", "value": 1.5},
        {"metric": "bytes_up", "value": 3, "unit": 4000},
        {"model": "cnn"},
    ]
    small(tmp_path, entry("a", "a"), entry("b", "b"), published=[cell | each for each in told])
    page, *_ = made(tmp_path)
    shown = [(row[2].rpartition(" · ")[2], *row[3:5]) for row in page.tables["published"][1:]]
    assert shown == [
        ("sketch clients", "80.0", "70.0"),
        ("round 1", "60.0", "70.0"),
        ("rounds to a", "1.0", "3.0"),
        ("speedup to a", "2.000", "1.500"),
        ("bytes up", "2.000", "3.000"),
        ("digits", "\u2013 not in this study", "70.0"),
    ]
    assert page.tables["domains"] == [
        ["Method", "photo", "sketch"],
        ["a", "40.0", "60.0"],
        ["b", "60.0", "80.0"],
    ]


def test_a_grid_that_is_half_trained_is_marked_in_all_three_forms(tmp_path):
    runs = [entry(f"r{mu}", "prox", point={"mu": mu}, title="FedProx") for mu in (1, 2)]
    runs += [entry("b", "local", title="Local")]  # It has no grid, and no run that is there.
    small(tmp_path, *runs, entry("a", "fedavg", title="FedAvg"), baseline="fedavg")
    for run in ("r1", "a"):
        write_run(tmp_path / "runs", run, [*clients([0.5]), *clients([0.6], split="val")])
    page, md, latex = made(tmp_path)
    gap = "preliminary choice: 1 of 2 grid points complete"
    assert page.tables["settings"][1] == ["FedProx", f"50.0 {gap}"]
    assert page.tables["settings"][2:4] == [["Local", "\u2013 1 missing"], ["FedAvg", "50.0"]]
    for written in (md, latex):
        assert written.count(f"50.0 ({gap})") == 1
    write_run(tmp_path / "runs", "r2", [*clients([0.4]), *clients([0.7], split="val")])
    page, *plain = made(tmp_path)
    assert not any("of 2 grid" in text for text in (page.text, *plain))


NASTY = "A&B_<i>{50%}$#|~^\\"


def test_labels_are_shown_literally_everywhere(tmp_path):
    write_run(tmp_path / "runs", "a", [*clients([0.5, 0.7], round=1), *clients([0.5, 0.7])])
    small(tmp_path, entry("a", NASTY, title=NASTY), title=NASTY, question=NASTY)
    page, md, latex = made(tmp_path)
    assert page.tables["settings"][1][0] == NASTY
    assert not any(tag == "i" for tag, _ in page.tags)
    assert r"A\&B\_\textless{}i\textgreater{}\{50\%\}\$\#\textbar{}\textasciitilde{}" in latex
    assert r"| A&amp;B\_&lt;i&gt;{50%}$\#\|\~^\\ | 60.0" in md


def test_titles_that_coincide_are_told_apart_by_their_labels(tmp_path):
    for run in ("a", "b"):
        write_run(tmp_path / "runs", run, clients([0.5]))
    small(tmp_path, entry("a", "weak", title="FedProx"), entry("b", "strong", title="FedProx"))
    page, *_ = made(tmp_path)
    heads = [row[0] for row in page.tables["settings"]]
    assert heads == ["Method", "FedProx (weak)", "FedProx (strong)"]


@pytest.mark.parametrize("state", ["empty plan", "all missing", "all diverged"])
def test_a_report_is_made_from_whatever_there_is(tmp_path, state):
    runs = [] if state == "empty plan" else [entry("a", "fedavg"), entry("b", "local")]
    small(tmp_path, *runs, baseline="local")
    for run in ("a", "b") if state == "all diverged" else ():
        rows = clients([math.nan, math.nan])
        write_run(tmp_path / "runs", run, rows, state="diverged")
    page, md, latex = made(tmp_path)
    word = "missing" if state == "all missing" else "diverged"
    if runs:
        assert [r[1] for r in page.tables["settings"][1:]] == [f"– 1 {word}"] * 2  # noqa: RUF001
        assert f"– (1 {word})" in md and f"-- (1 {word})" in latex  # noqa: RUF001
    assert f"{len(runs)} runs: 0 complete" in md
    assert {link[1:] for link in page.links} <= set(page.ids)


def test_curves_say_which_runs_diverged(tmp_path):
    runs = [entry(run, "fedavg", seed=seed) for seed, run in enumerate("abc")]
    small(tmp_path, *runs, entry("d", "local"), baseline="local")
    for run in "abcd":
        state = "diverged" if run in "ac" else "complete"
        write_run(tmp_path / "runs", run, clients([0.5, 0.7]), state=state)
    page, *_ = made(tmp_path)
    assert "fedavg 2 of 3." in page.text


def test_comparisons_on_unseen_clients_are_a_family_of_their_own(tmp_path):
    """What is behind on trained clients is ahead on unseen ones, by .1 in all of six seeds."""
    runs, results = [], tmp_path / "results"
    for seed in range(6):
        for method, gain in {"fedavg": 0.0, "ditto": 0.1}.items():
            name, accuracy = f"{method}{seed}", 0.5 + 0.01 * seed
            unseen = [(2, 2, "unseen", "global", "accuracy", accuracy + gain, 100)]
            write_run(results / "runs", name, clients([accuracy - gain] * 2) + unseen)
            runs.append(entry(name, method, seed=seed))
    write_plan(results, plan(runs, baseline="fedavg"))
    page, md, _ = made(results)
    [*_, ditto] = page.tables["unseen"]
    assert ditto[1] == "+10.0" and ditto[3:6] == ["0.031", "0.031", "ahead"]
    [_, ditto] = page.tables["paired"]
    assert ditto[1] == "\N{MINUS SIGN}10.0" and ditto[5] == "behind"
    assert "Unseen clients: Against fedavg in pairs" in md


def test_unseen_clients_have_a_table_of_their_own(tmp_path, full):
    results = tmp_path / "results"
    cell = {"source": "A", "table": "1", "row": "r", "column": "c", "note": "", "sd": None}
    cell |= {"method": "fedavg", "setting": "digits", "value": 20.0, "unseen": True}
    made_plan = plan([entry("r1", "fedavg"), entry("r2", "local")]) | {"published": [cell]}
    write_plan(results, made_plan)
    counts = {"train": [[5, 1], [1, 5], [3, 3]], "test": [[2, 1], [1, 2], [2, 2]]}
    write_partition(results, "part", counts, ["a", "b"], unseen=[2])
    unseen = [(2, 2, "unseen", "global", "accuracy", 0.25, 4)]
    write_run(results / "runs", "r1", clients([0.5, 0.7]) + unseen)
    write_run(results / "runs", "r2", clients([0.8, 0.9], stage="personal"))
    page, md, latex = made(results)
    assert page.tables["unseen"][1:] == [["fedavg", "25.0"], ["local", NOTHING]]
    assert page.tables["settings"][1][1] == "60.0"
    [_, _, setting, *shown, _, _] = page.tables["published"][1]
    assert setting.endswith(" · unseen clients") and shown == ["25.0", "20.0"]
    assert "Clients held out of training" in md
    assert "Clients held out of training" in latex
    assert "Clients held out" not in (full / "report" / "quickstart.md").read_text()


@pytest.mark.parametrize("scheme", ["natural", "dirichlet"])
def test_clients_that_are_domains_have_their_names(tmp_path, scheme):
    """Of clients that a scheme draws, the domain is that of most of their samples, and no name."""
    labels = np.arange(60) % 3
    table = partition.homogeneous(labels, clients=3)
    (tmp_path / "partitions" / "part").mkdir(parents=True)
    statistics = tmp_path / "partitions" / "part" / "statistics.parquet"
    partition.statistics(table, labels, 3).to_parquet(statistics)
    domains = ["amazon", "caltech", "webcam"]
    about = {"classes": ["a", "b", "c"], "scheme": scheme, "domains": domains}
    (tmp_path / "partitions" / "part" / "partition.json").write_text(json.dumps(about))
    found = read(tmp_path, "part", "digits · x")
    assert found.client_labels == (domains if scheme == "natural" else ["0", "1", "2"])
    svg = figures.holdings(found).svg
    assert [name in svg for name in domains] == [scheme == "natural"] * 3


def test_a_thousand_clients_of_power_law_sizes_are_seen(tmp_path):
    labels = np.arange(20_000) % 10
    table = partition.power_law(labels, clients=1000)
    told = partition.statistics(table, labels, 10)
    (tmp_path / "partitions" / "part").mkdir(parents=True)
    told.to_parquet(tmp_path / "partitions" / "part" / "statistics.parquet")
    about = {"classes": [str(c) for c in range(10)]}
    (tmp_path / "partitions" / "part" / "partition.json").write_text(json.dumps(about))
    svg = figures.holdings(read(tmp_path, "part", "digits · x")).svg
    ticks = re.findall(r"<text[^>]*>(\d+)</text>", svg)
    assert 4 <= len(set(ticks) - set("123456789")) <= 8
    assert "clients, by most frequent class and size" in svg
    picture = re.search(r"data:image/png;base64,([^\"]+)", svg).group(1)
    alpha = imread(io.BytesIO(base64.b64decode(picture)))[..., 3]
    # Two classes of ten each are a fifth of the picture; half of the clients hold ten samples.
    assert (alpha > 0.15).mean() == pytest.approx(0.2, abs=0.04)
    assert len(svg) < 40_000


def test_what_the_server_holds_is_said(tmp_path):
    results = tmp_path / "results"
    write_plan(results, plan([entry("r1", "fedavg")]))
    write_run(results / "runs", "r1", clients([0.5]))
    counts = {"train": [[5, 1]], "test": [[2, 1]]}
    write_partition(results, "part", counts, ["a", "b"])
    assert "labelled samples" not in made(results)[0].text
    shutil.rmtree(results / "partitions")
    write_partition(results, "part", {**counts, "server": [[1, 1]]}, ["a", "b"])
    said = "the server holds 2 labelled samples, which no client sees"
    assert said in made(results)[0].text


def test_distances_between_domains_are_a_table(tmp_path):
    counts = {"train": [[5, 1]], "test": [[2, 1]]}
    write_partition(tmp_path, "part", counts, ["a", "b"])
    assert partitions.distances_table(read(tmp_path, "part", "digits · x")) is None
    rows = [("photo", "sketch", 0.25), ("photo", "clip", 0.5), ("sketch", "clip", 0.001)]
    frame = pd.DataFrame(rows, columns=["domain", "other", "mmd2"])
    frame.to_parquet(tmp_path / "partitions" / "part" / "domains.parquet")
    table = partitions.distances_table(read(tmp_path, "part", "digits · x"))
    assert [column.name for column in table.columns] == ["Domain", "photo", "sketch", "clip"]
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        ["", "0.250", "0.500"],
        ["0.250", "", "0.001"],
        ["0.500", "0.001", ""],
    ]
