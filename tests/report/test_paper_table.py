"""The table that a user composes: what is in it, what is in bold, and its three formats."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from latex_documents import NEEDS_LATEX, ONE_COLUMN, compiled
from make_results import clients, entry, plan, write_plan, write_run

from fl.base.errors import ConfigError, DataError
from fl.report import claims, latex, page, paper_table
from fl.report.facts import Facts, gather

GAINS = {"base": 0.0, "best": 0.2, "twin": 0.2, "noisy": 0.0, "worse": -0.2, "good": 0.1}
ALPHAS = (0.1, 0.5, 1.0)
Make = Callable[..., Facts]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Facts of six methods in three settings; ``twin`` has exactly the values of ``best``."""

    def facts(draws: int = 6, **choices: object) -> Facts:
        results = tmp_path_factory.mktemp("paper")
        runs = []
        for alpha in ALPHAS:
            for draw in range(draws):
                for i, (method, gain) in enumerate(GAINS.items()):
                    noise = 0.013 * ((draw * (2 if method == "noisy" else 3)) % 5) - 0.02
                    value = 0.5 + gain + noise * (-1) ** (method == "noisy" and draw % 2)
                    rows = clients([value, value + 0.01])
                    rows += clients([1 - value] * 2, metric="loss")
                    name = f"r{alpha}x{draw}x{i}".replace(".", "")
                    write_run(results / "runs", name, rows)
                    partition = f"dirichlet(clients=2, alpha={alpha}, seed={draw})"
                    about = {"partition": partition, "partition_id": f"p{alpha}x{draw}"}
                    runs.append(entry(name, method, title=method.title(), **about))
        write_plan(results, plan(runs, **{"baseline": "base", "ours": "good"} | choices))
        return gather("small", results, results / "runs")

    return facts


@pytest.fixture(scope="module")
def facts(make: Make) -> Facts:
    return make()


def bold(facts: Facts, **choices: object) -> set[str]:
    """The methods in bold, the same in all settings."""
    frame = paper_table.values(facts, **choices)
    by_setting = frame[frame["best"]].groupby("partition")["method"].agg(frozenset)
    assert by_setting.nunique() <= 1
    return set(by_setting.iloc[0]) if len(by_setting) else set()


def test_bold_are_those_ahead_of_the_baseline_and_their_twins(facts: Facts):
    assert bold(facts) == {"best", "twin", "good"}
    assert bold(facts, metrics="loss") == {"best", "twin", "good"}
    assert bold(facts, best="mean") == {"best", "twin"}
    assert bold(facts, best=None) == set()
    told = facts.claims[facts.claims["verdict"] == claims.AHEAD]
    assert {*told["method"]} == {"best", "good"}, "a twin is not tested"


def test_without_a_baseline_bold_are_those_that_no_other_is_ahead_of(make: Make):
    assert bold(make(baseline=None)) == {"best", "twin"}


def test_where_none_is_ahead_of_the_baseline_all_are_bold_that_it_is_not_ahead_of(make: Make):
    assert bold(make(baseline="best")) == {"best", "twin"}


def test_what_is_bold_does_not_depend_on_what_is_shown(facts: Facts):
    assert bold(facts, methods=["noisy", "worse"]) == set()
    assert bold(facts, methods=["worse", "good"], best="mean") == {"good"}


def test_too_few_draws_mark_nothing_and_the_caption_says_so(make: Make):
    few = make(draws=3)
    frame = paper_table.values(few)
    assert not frame["best"].any()
    assert "3 draws" in paper_table.table(few, frame).caption


def test_the_caption_has_test_family_draws_and_margin(facts: Facts):
    caption = paper_table.table(facts, paper_table.values(facts)).caption
    tests = int(facts.claims["p"].notna().sum())
    for words in ("6 draws", "exact sign-flip test", "5 %", f"the {tests} comparisons", "maxT"):
        assert words in caption, words
    assert "1 point" in caption and "Base" in caption
    both = paper_table.table(facts, paper_table.values(facts, metrics=["accuracy", "loss"])).caption
    assert f"{tests} by accuracy" in both and "by loss" in both
    plain = paper_table.table(facts, paper_table.values(facts, best=None), None).caption
    assert "Bold" not in plain


def test_rows_and_columns_are_those_named_in_their_order(facts: Facts):
    names = ["dirichlet(clients=2, alpha=1.0)", "dirichlet(clients=2, alpha=0.1)"]
    frame = paper_table.values(facts, ["worse", "Good", "worse"], settings=names)
    table = paper_table.table(facts, frame)
    assert [row.head for row in table.rows] == ["Worse", "Good (ours)"]
    assert [column.name for column in table.columns[1:]] == names
    frame = paper_table.values(facts, "best", ["loss", "accuracy"], "digits")
    table = paper_table.table(facts, frame)
    assert [column.name for column in table.columns] == ["Method", "loss", "accuracy (%)"]
    assert [row.kind for row in table.rows] == ["heading", "method"] * 3
    assert len(frame) == 6 and set(frame["n"]) == {6}


def test_all_formats_have_the_same_numbers_and_the_same_bold(facts: Facts):
    frame = paper_table.values(facts)
    table = paper_table.table(facts, frame)
    markdown, plain = page.to_markdown(table), latex.to_latex(table, "t")
    numbers = latex.to_latex(table, "t", siunitx=True)
    for row in frame.to_dict("records"):
        mean, sd = f"{100 * row['mean']:.1f}", f"{100 * row['sd']:.1f}"
        assert f"{mean} ± {sd}" in markdown
    assert markdown.count("**") == 2 * frame["best"].sum()
    assert plain.count(r"\textbf") == numbers.count(r"\bfseries") == frame["best"].sum()
    assert re.findall(r"(\d\d\.\d)\\,\$\\pm\$\\,(\d\.\d)", plain) == re.findall(
        r"(\d\d\.\d) \\pm (\d\.\d)", numbers
    )
    assert numbers.count("S[table-format=2.1(2)]") == 3


@pytest.mark.parametrize(
    ("choices", "key", "meant"),
    [
        ({"methods": ["best", "nosy"]}, "nosy", "noisy"),
        ({"metrics": ["acuracy"]}, "acuracy", "accuracy"),
        ({"settings": ["dirichlet(clients=2, alpha=0.3)"]}, "alpha=0.3", "alpha=0."),
        ({"best": "significance"}, "significance", "significant"),
        ({"best": False}, "False", ""),
        ({"methods": []}, "methods", ""),
        ({"settings": [0.1]}, "0.1", ""),
        ({"methods": [None]}, "None", ""),
    ],
)
def test_a_wrong_name_is_named_with_what_is_meant(facts: Facts, choices, key: str, meant: str):
    with pytest.raises(ConfigError) as caught:
        paper_table.values(facts, **choices)
    assert key in str(caught.value) and meant in str(caught.value)
    assert caught.value.location.file == "the study small"


def test_a_study_without_a_complete_run_has_no_table(facts: Facts):
    with pytest.raises(DataError, match="no run is complete"):
        paper_table.values(replace(facts, rows=facts.rows.iloc[:0]))


def test_cells_that_are_no_number_stand_in_braces():
    assert latex._siunitx("–", False) == "{--}"  # noqa: RUF001
    assert latex._siunitx("1,234 ± 10", True) == r"\bfseries 1234 \pm 10"
    assert latex._siunitx("93.4 ± 0.5 (1 diverged)", False).startswith("{93.4")
    assert latex._siunitx("\N{MINUS SIGN}0.5", False) == "-0.5"
    texts = ["81.2 ± 10.4", "\N{MINUS SIGN}1,081.25", "–"]  # noqa: RUF001
    assert latex._number_format(texts) == "-4.2(3)"
    assert latex._number_format(["5", "17"]) == "2" and latex._number_format(["a"]) == ""
    assert latex._number_format(["0.012 ± 0.000"]) == "1.3(1)"


def has_siunitx() -> bool:
    """Whether LaTeX has siunitx."""
    if not shutil.which("kpsewhich"):
        return False
    found = subprocess.run(["kpsewhich", "siunitx.sty"], capture_output=True, check=False)
    return found.returncode == 0


WRONG = r"Overfull \\hbox.*|Float too large.*|.*undefined.*|Missing.*|.*multiply defined.*"


@NEEDS_LATEX
@pytest.mark.parametrize("siunitx", [False, True])
def test_it_compiles(facts: Facts, siunitx: bool, tmp_path: Path):
    if siunitx and not has_siunitx():
        pytest.skip("needs siunitx (Debian: texlive-science)")
    metrics = (["accuracy"], ["accuracy", "loss"])
    tables = [
        replace(paper_table.table(facts, paper_table.values(facts, metrics=m)), name=f"t{i}")
        for i, m in enumerate(metrics)
    ]
    head = ONE_COLUMN + (latex.SIUNITX if siunitx else "")
    body = "".join(latex.documents(facts, tables, siunitx).values())
    log = compiled(body, tmp_path, head)
    assert not re.findall(WRONG, log)


def test_braces_are_balanced_and_columns_counted_without_a_tex(facts: Facts):
    table = paper_table.table(facts, paper_table.values(facts, metrics=["accuracy", "loss"]))
    text = latex.to_latex(table, "t", siunitx=True)
    plain = re.sub(r"\\[{}\\%&_#$]", "", text)
    depth = 0
    for character in plain:
        depth += (character == "{") - (character == "}")
        assert depth >= 0
    assert depth == 0 and "%" not in plain
    body = text.split(r"\midrule", 1)[1].split(r"\bottomrule")[0]
    lines = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert all(len(line.split(" & ")) == 3 for line in lines if r"\multicolumn" not in line)


def test_notes_are_of_the_settings_that_are_shown(tmp_path: Path):
    """In the other setting a method had more rounds and seeds, and another backend."""
    runs, loop = [], {"backend": "loop", "device": "cpu", "threads": 1}
    for alpha in (0.1, 0.5):
        for i, method in enumerate(("avg", "prox")):
            for seed in range(1 + (alpha == 0.5)):
                other = alpha == 0.5 and method == "prox"
                about = {"execution": loop} if other else {}
                rows = clients([0.5], round=4 if other else 2)
                write_run(tmp_path / "runs", f"r{10 * alpha:g}x{i}x{seed}", rows, **about)
                text = f"dirichlet(clients=2, alpha={alpha})"
                names = {"partition": text, "partition_id": text, "seed": seed}
                point = {"mu": 0.1} if method == "prox" else {}
                runs.append(entry(f"r{10 * alpha:g}x{i}x{seed}", method, point=point, **names))
    write_plan(tmp_path, plan(runs))
    facts = gather("small", tmp_path, tmp_path / "runs")
    names = ["dirichlet(clients=2, alpha=0.1)", "dirichlet(clients=2, alpha=0.5)"]
    one, other = (paper_table.table(facts, paper_table.values(facts, settings=n)) for n in names)
    assert "Backends" in other.scope and "Rounds of training" in other.scope
    assert "Backends" not in one.scope and "Rounds of training" not in one.scope
    assert "there is one" in one.caption
    [line] = paper_table.point_lines(facts, None, names[0])
    assert line == f"prox, {names[0]}: mu=0.1"
