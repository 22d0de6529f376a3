"""The tables in LaTeX compile, whatever stands in them, and fit a page."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from make_results import clients, entry, plan, write_plan, write_run, write_six, write_study

from fl import report
from fl.report.cells import Cell, Group, Row, Table
from fl.report.facts import gather
from fl.report.latex import PACKAGES, WIDTH, preamble, tex, to_latex, width
from fl.report.outline import outline


def has_latex() -> bool:
    """Whether pdflatex is there, and what a document of ours needs."""
    if shutil.which("pdflatex") is None or shutil.which("kpsewhich") is None:
        return False
    names = [f"{name}.sty" for name in PACKAGES]
    return subprocess.run(["kpsewhich", *names], capture_output=True, check=False).returncode == 0


NEEDS_LATEX = pytest.mark.skipif(
    not has_latex(),
    reason="needs pdflatex with booktabs (Debian: texlive-latex-base, texlive-latex-recommended)",
)


def compiled(body: str, folder: Path) -> str:
    """LaTeX's log of a document with nothing but these tables; it fails where LaTeX does."""
    document = f"\\documentclass{{article}}{preamble()}\\begin{{document}}\n{body}\\end{{document}}"
    (folder / "paper.tex").write_text(document)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    for _ in range(2):  # A longtable knows its widths the second time.
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:]
    return (folder / "paper.log").read_text(errors="replace")


def nasty(results: Path) -> None:
    """Titles that LaTeX would take for an option or a command."""
    titles = ["[ours]", "[1cm] B", "*C", "50 % & more_less", "$x^2$ \\ {#1} ~", "µ ± 2 σ²"]
    runs = []
    for i, title in enumerate(titles):
        for seed in (0, 1):
            name = f"r{i}s{seed}"
            point = {"lr": 0.1 * i}
            runs.append(entry(name, f"m{i}", title=title, seed=seed, point=point))
            write_run(results / "runs", name, clients([0.5 + 0.01 * i, 0.6]))
    called = {"dataset": {"digits": "[digits]"}, "model": {"mlp": "50%_\n#1"}}
    write_plan(results, plan(runs, study="na_sty", title="a_b\n\nc", baseline="m0", titles=called))


@NEEDS_LATEX
@pytest.mark.parametrize("which", ["quickstart", "six", "na_sty"])
def test_the_tables_of_a_study_compile_and_fit_the_page(which: str, tmp_path: Path):
    results = tmp_path / "results"
    {"quickstart": write_study, "six": write_six, "na_sty": nasty}[which](results)
    facts = gather(which, results, results / "runs")
    body = report.latex_tables(facts, outline(facts))
    log = compiled(body, tmp_path)
    assert not re.findall(r"Overfull \\hbox.*|Float too large.*|.*undefined.*|Missing.*", log)


def test_a_row_that_begins_with_a_bracket_is_no_option_of_the_line_before():
    rows = tuple(Row(Cell(name), (Cell("1"),)) for name in ("a", "[1cm] B", "*c"))
    found = to_latex(Table("t", "[x]", "[y]", ("[z]\n[u]",), (Group("[g]", rows),)), "a b")
    after_break = re.findall(r"(?:\\\\|rule)\s*(.)", found)
    assert after_break and not {"[", "*"} & set(after_break)
    assert r"{[}1cm{]} B & 1 \\" in found and r"\label{tab:a-b}" in found
    assert tex("one\n\ntwo  three") == "one two three"


def wide(columns: int, head: str = "method", crossed: str = "") -> Table:
    cells = tuple(Cell(f"{i}8.8 ± 0.{i}") for i in range(columns))
    rows = (Row(Cell(head), cells), Row(Cell("b"), cells))
    names = tuple(f"c{i}" for i in range(columns))
    return Table("t", "Caption.", "Method", names, (Group("", rows),), crossed=crossed)


def test_a_table_that_is_too_wide_changes_places_or_is_dealt_to_several():
    assert to_latex(wide(6), "t").count(r"\begin{tabular}") == 1
    turned = to_latex(wide(12, crossed="Setting"), "t")
    assert turned.count(r"\begin{tabular}") == 1
    assert r"Setting & method & b \\" in turned and r"c11 & 118.8 $\pm$ 0.11 &" in turned
    several = to_latex(wide(20), "t")
    assert several.count(r"\begin{tabular}") == several.count(r"Method &") == 4
    assert all(re.search(rf"\bc{i}\b", several) for i in range(20))
    assert several.count("Continued: Caption.") == 3 and r"\label{tab:t-3}" in several
    broken = to_latex(wide(5, "a method whose name is many words long " * 2), "t")
    assert r"\raggedright\arraybackslash}p{" in broken


def test_widths_are_those_of_latexs_own_type():
    # 9 points: digits are 0.514 of that in cmr9, an m is 0.856.
    assert 10 * 0.514 * 9 < width("0123456789") < 10 * 0.53 * 9
    assert 10 * 0.856 * 9 < width("m" * 10) < 10 * 0.88 * 9
    assert width("m" * 60) > WIDTH
