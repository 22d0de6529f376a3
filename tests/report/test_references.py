"""References of all that a report shows, and BibTeX of them that LaTeX sets."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import planning
import pytest
import yaml
from make_results import write_study

from fl import report
from fl.base import registry
from fl.plan import plan
from fl.report import references
from fl.report.facts import gather
from fl.report.outline import outline
from fl.report.references import Work, bibtex, works

ROOT = Path(__file__).resolve().parents[2]
CITATIONS = {
    (kind, said.name): said.citation
    for kind in registry.FOLDER_BY_KIND
    for said in registry.list_documentation(kind)
}


def test_every_citation_is_read_to_its_end_or_says_that_there_is_none() -> None:
    for (kind, name), citation in CITATIONS.items():
        published = [text for text in citation.split("; ") if text and not text.startswith("No ")]
        assert len(works(citation)) == len(published), f"{kind} {name}: {citation}"
        for work in works(citation):
            assert 1959 < int(work.year) < 2100, name
            assert not re.search(r"\barXiv|\bet al\b|\d{4}\.", work.title + work.venue), name
    keys = {(work.title_key, work.key) for text in CITATIONS.values() for work in works(text)}
    apart: dict[str, set[str]] = {}
    for same, key in keys:
        apart.setdefault(key, set()).add(same)
    assert not [key for key, titles in apart.items() if len(titles) > 1]


def test_citations_of_several_forms_are_read_as_they_are_meant() -> None:
    assert works(CITATIONS["method", "ditto"]) == [
        Work(
            authors="Li, Hu, Beirami, Smith",
            title="Ditto: Fair and Robust Federated Learning Through Personalization",
            venue="ICML",
            year="2021",
            arxiv="2012.04221",
            doi="",
        )
    ]
    [mnist] = works(CITATIONS["data set", "mnist"])
    assert (mnist.venue, mnist.year) == ("Proceedings of the IEEE 86(11)", "1998")
    assert mnist.doi == "10.1109/5.726791"
    [lenet] = works(CITATIONS["model", "lenet"])
    assert (lenet.venue, lenet.year, lenet.title_key) == ("Proc. IEEE 86", "1998", mnist.title_key)
    birds, captions, _ = works(CITATIONS["data set", "cub200"])
    assert birds.venue.startswith("Technical report CNS-TR-2011-001, ")
    assert captions.authors.startswith("S. Reed, ")
    # A work that says no year has that of its preprint.
    *_, bcn = works(CITATIONS["data set", "fed-isic2019"])
    assert (bcn.title, bcn.venue, bcn.year) == ("BCN20000", "", "2019")
    assert works(CITATIONS["model", "cnn"]) == []


def test_one_work_cited_twice_is_one_entry_with_all_that_is_known() -> None:
    said = [CITATIONS["data set", "synthetic"], CITATIONS["method", "fedprox"]]
    text = bibtex(said, ["0.2.0"])
    assert re.findall(r"^@(\w+){(\w+)", text, re.MULTILINE) == [
        ("misc", "fedloom"),
        ("misc", "li2020federated"),
    ]
    assert "author = {Li, T. and Sahu, A. K. and Zaheer, M." in text
    assert "eprint = {1812.06127}" in text
    assert "note = {version 0.2.0}" in text


def test_names_of_several_words_stay_whole() -> None:
    text = bibtex([CITATIONS["method", "fedavg"], CITATIONS["data set", "fed-isic2019"]])
    assert "and {Agüera y Arcas}}" in text
    assert "author = {Ogier du Terrail, J. and others}" in text


def test_how_to_cite_fedloom_is_what_the_citation_file_says() -> None:
    stated = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert stated["title"] == references.TITLE
    assert [author["name"] for author in stated["authors"]] == [references.AUTHORS]


def test_a_report_ends_with_what_its_study_names(tmp_path: Path) -> None:
    methods = {
        "fedavg": None,
        "mine": {"method": "ditto", "terms": {"cosine": {"mu": 0.1, "layers": ["2"]}}},
    }
    methods["mixed"] = {"method": "fedavg", "alterations": {"mixup": {}}}
    config = planning.write_config(
        tmp_path, {"methods": methods, "analyses": ["features"], "models": ["mlp"]}
    )
    study = plan.make(config).studies["tiny"]
    results = tmp_path / "results"
    facts = gather("tiny", results, tmp_path / "runs", study)
    said = dict(references.shown_citations(facts))
    for name in ("method fedavg", "method ditto", "term cosine", "alteration mixup", "model mlp"):
        assert any(name in things.split(", ") for things in said), name
    assert any("data set synthetic" in things for things in said)
    assert any("partition scheme dirichlet" in things for things in said)
    assert any("analysis features" in things for things in said)
    assert len(said) == len(set(said.values())) == 8
    texts = report.texts(facts, outline(facts))
    assert outline(facts)[-1].id == "references"
    page = texts[".html"]
    assert "Li, Hu, Beirami, Smith. Ditto: Fair and Robust" in page
    assert texts[".bib"].count("@misc{") == 8, "the MLP is FedAvg's, and Fedloom is one"


def test_a_plan_of_before_has_no_references(tmp_path: Path) -> None:
    write_study(tmp_path / "results")
    facts = gather("quickstart", tmp_path / "results", tmp_path / "results" / "runs")
    assert "references" not in [section.id for section in outline(facts)]


@pytest.mark.skipif(
    shutil.which("bibtex") is None, reason="needs bibtex (Debian: texlive-latex-base)"
)
def test_latex_sets_all_references_of_the_library(tmp_path: Path) -> None:
    (tmp_path / "all.bib").write_text(bibtex(CITATIONS.values(), ["0.2.0.dev0+g1a2b3c4d5"]))
    (tmp_path / "paper.tex").write_text(
        "\\documentclass{article}\\usepackage[T1]{fontenc}\\usepackage[utf8]{inputenc}"
        "\\begin{document}\\nocite{*}\\bibliographystyle{plain}\\bibliography{all}\\end{document}"
    )
    latex = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    for command in (latex, ["bibtex", "paper"], latex):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:]
        assert [line for line in done.stdout.splitlines() if line.startswith("Warning--")] == []
    listed = (tmp_path / "paper.bbl").read_text()
    titles = {work.title_key for citation in CITATIONS.values() for work in works(citation)}
    assert listed.count("\\bibitem") == len(titles) + 1
