"""The tables in LaTeX compile, whatever stands in them, and fit a page."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from latex_documents import NEEDS_LATEX, compiled
from make_results import clients, entry, plan, write_plan, write_run

from fl import report
from fl.report.cells import Cell, Row, Table, columns
from fl.report.facts import gather
from fl.report.latex import FITTED, PREAMBLE, to_latex
from fl.report.outline import outline

Built = Callable[[str], Path]


def nasty(results: Path) -> None:
    """Titles that LaTeX would take for an option or a command."""
    titles = ["[ours]", "[1cm] B", "*C", "50 % & more_less", "$x^2$ \\ {#1} ~", "µ ± 2 σ²"]
    titles += ['"Ours"', "caf\u00e9 cafe\u0301", "\U0001f600 Жą日"]
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
def test_the_tables_of_a_study_compile_and_fit_the_page(which: str, tmp_path: Path, built: Built):
    if which == "na_sty":
        nasty(tmp_path / "results")
        facts = gather(which, tmp_path / "results", tmp_path / "results" / "runs")
        body = report.texts(facts, outline(facts))[".tex"]
    else:
        body = (built(which) / "report" / f"{which}.tex").read_text()
    log = compiled(body, tmp_path)
    # What was set before it was made smaller is no box of the page.
    assert not re.findall(
        r"Overfull \\hbox.*|Float too large.*|.*undefined.*|Missing.*|.*multiply defined.*", log
    )
    labels = re.findall(r"\\label\{(.*?)\}", body)
    assert len(labels) == len(set(labels)) > 3, "no two tables share a label"


NO_SMALLER = r"""\makeatletter\newcommand{\fitted}[1]{\sbox0{#1}%
\typeout{set \the\wd0 in \the\linewidth at \f@size}\usebox0}\makeatother"""
"""`FITTED` that makes nothing smaller, and says how wide a table is."""


@NEEDS_LATEX
@pytest.mark.parametrize("which", ["quickstart", "six"])
def test_tables_fit_a_page_of_two_columns_at_eight_points(which: str, tmp_path: Path, built: Built):
    folder = built(which) / "report" / which
    names = sorted(path.name for path in folder.glob("*.tex"))
    assert len(names) > 5, "a file for each table"
    inputs = "".join(f"\\input{{{folder / name}}}\\clearpage\n" for name in names)
    sizes = r"\setlength{\textwidth}{504pt}\setlength{\columnsep}{24pt}"
    document = rf"\documentclass[twocolumn]{{article}}{PREAMBLE}{sizes}"
    log = compiled(f"{NO_SMALLER}\n{inputs}", tmp_path, document)
    found = re.findall(r"set ([\d.]+)pt *in ([\d.]+)pt *at ([\d.]+)", log)
    assert {line for _, line, _ in found} == {"240.0", "504.0"}
    for width, line, size in found:
        assert float(width) <= float(line) and float(size) >= 8
        assert float(width) > 240 * 0.85 or line == "240.0", "narrow ones stand in a column"


CLASSES = {"IEEEtran": "conference", "acmart": "sigconf,nonacm"}
"""Classes of papers in two columns, with an option for each."""


def has_class(name: str) -> bool:
    """Whether LaTeX has a document class and the packages that it loads."""
    probe = rf"\documentclass[{CLASSES[name]}]{{{name}}}\begin{{document}}\end{{document}}"
    command = ["pdflatex", "-draftmode", "-interaction=nonstopmode", "-halt-on-error", probe]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


@NEEDS_LATEX
@pytest.mark.parametrize("name", CLASSES)
def test_tables_compile_and_fit_in_the_classes_of_papers(name: str, tmp_path: Path, built: Built):
    """Each file by itself, as an author includes it, and by `Result.to_latex`'s preamble alone."""
    if not has_class(name):
        packages = (
            "texlive-publishers texlive-latex-extra texlive-plain-generic texlive-fonts-recommended"
        )
        pytest.skip(f"needs the class {name} (Debian: {packages})")
    files = sorted((built("six") / "report" / "six").glob("*.tex"))
    assert len(files) > 5
    inputs = "".join(f"\\input{{{file}}}\\clearpage\n" for file in files)
    head = rf"\documentclass[{CLASSES[name]}]{{{name}}}{PREAMBLE}\title{{Tables}}"
    log = compiled(inputs, tmp_path, head)
    wrong = r"Overfull \\hbox.*|Float too large.*|.*undefined.*|Missing.*|.*multiply defined.*"
    assert not re.findall(wrong, log)
    pages = re.search(r"Output written on paper\.pdf \((\d+) pages?", log)
    assert pages and int(pages[1]) >= len(files), "each table has a page of its own here"


@NEEDS_LATEX
def test_wide_tables_are_made_smaller_and_long_ones_go_on_in_another(tmp_path: Path):
    cells = tuple(Cell(f"{i}8.8 ± 0.{i}") for i in range(20))
    long = "a method whose name is many words long, digits · dirichlet(clients=8,alpha=0.3)"
    rows = [Row(f"setting {i // 10}", kind="heading") if i % 10 == 0 else Row(long, cells)
            for i in range(60)]  # fmt: skip
    names = columns("Method", *(f"rounds to\n{i} %" for i in range(20)))
    body = to_latex(Table("t", "Caption.", names, tuple(rows)), "t")
    log = compiled(f"{FITTED}\n{body}", tmp_path)
    assert not re.findall(r"Overfull \\hbox.*|Float too large.*", log)
    assert body.count("Continued: Caption.") == body.count(r"\begin{table*}") - 1 > 1
    assert r"\shortstack[r]{rounds to \\ 19 \%}" in body, "a head breaks where it says so alone"
    assert {*re.findall(r"\\emph\{(setting \d)", body)} == {f"setting {i}" for i in range(6)}
    begins = [piece.split(r"\\")[0] for piece in body.split(r"\midrule")[1:]]
    assert all(r"\emph{setting" in begin for begin in begins), "each table begins with its setting"
    for page in body.split(r"\bottomrule")[:-1]:
        assert r"\emph" not in page.strip().splitlines()[-1], "no heading without rows"
