"""The overview of studies: whose table each is, what it takes, and what of it is there."""

from __future__ import annotations

import re
from pathlib import Path

import planning
import pytest

from fl.base.errors import Location
from fl.cli import main, studies
from fl.plan import config, plan

ROOT = Path(__file__).resolve().parents[2]
CELLS = "table,row,column,value,sd,note\n1,FedAvg,all,70.0,,\n1,Local,all,60.0,,\n"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny study, as table 1 of a paper, and beside it one that cannot be planned."""
    monkeypatch.chdir(tmp_path)
    column = "synthetic(alpha=1.0, clients=4, samples=40)"
    cells = {"source": "smith.csv", "table": "1", "columns": {column: "all"}}
    cells["rows"] = {"fedavg": "FedAvg", "local": "Local"}
    config = planning.write_config(
        tmp_path,
        {
            "methods": {"fedavg": None, "local": None},
            "published": [cells],
            "seeds": [0, 1],
            "paper": "Smith. Some. 2020 (table 9).",
            "shows": "Tables 1, 2 and 3, 50 parties",
        },
    )
    (config / "published").mkdir()
    (config / "published" / "smith.csv").write_text(CELLS)
    (config / "studies" / "smith-bad.yaml").write_text("shows: The main table\n")
    return tmp_path


def test_runs_time_and_cells_stand_in_a_line(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["studies", "--stored"]) == 0
    head, line, told, trouble = capsys.readouterr().out.splitlines()
    what = "methods runs stored time published"
    assert head.split() == ["paper", "study", "shows", "data", "set", *what.split()]
    cells = re.split(r"\s{2,}", line)
    shown = [
        "smith",
        "tiny",
        "Tables 1, 2 and 3, 50 parties",
        "synthetic",
        "2",
        "4",
        "0",
        "unknown",
        "2",
    ]
    assert cells == shown
    assert told.startswith("1 study. Time: ")
    assert trouble.startswith("smith-bad cannot be planned: config/studies/smith-bad.yaml")

    assert main.main(["plan", "--write"]) == 0
    for bundle in (lab / "results" / "plan" / "bundles").iterdir():
        assert main.main(["train", str(bundle), "--store", "runs"]) == 0
    capsys.readouterr()
    assert main.main(["studies", "smith", "--stored"]) == 0
    cells = re.split(r"\s{2,}", capsys.readouterr().out.splitlines()[1])
    assert cells[:7] == [*shown[:6], "4"]
    assert re.fullmatch(r"[\d.]+ s", cells[7])


def test_a_list_plans_nothing(
    lab: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "make", lambda *_, **__: pytest.fail("planned"))
    assert main.main(["studies"]) == 0
    head, line, told, trouble = capsys.readouterr().out.splitlines()
    heads = ["paper", "study", "shows", "data set", "files", "methods", "runs", "title"]
    assert re.split(r"\s{2,}", head) == heads
    table = ["Tables 1, 2 and 3, 50 parties", "synthetic", "ready"]
    assert re.split(r"\s{2,}", line) == ["smith", "tiny", *table, "2", "4", "tiny"]
    assert told.startswith("1 study. Files: by hand")
    needs = [
        studies.Overview("x", "", "", datasets=(*names,))
        for names in (["cub200", "digits"], [], ["digits", "table"])
    ]
    assert [study.files for study in needs] == ["by hand", "", "your own"]
    assert trouble.startswith("smith-bad cannot be planned: config/studies/smith-bad.yaml")


@pytest.mark.parametrize(
    "name", ["fedl2p-vowel", "fedlgd-table6", "fedsac-table3", "fedfm-two-clients-digits"]
)
def test_runs_without_names_are_as_many_as_with(name: str) -> None:
    """Images for all seeds, seeds of draws, stored models, and runs that entries share."""
    folder = ROOT / "config"
    draft = config.read_draft(folder, name, Location(name))
    listed = studies.with_size(studies.Overview(name, "", ""), folder, draft)
    planned = plan.make(folder, [name], checked=False)
    assert listed.runs == len(planned.runs)
    names = planned.studies[name].names
    assert (list(listed.datasets), list(listed.methods)) == (names["data set"], names["method"])


def test_what_has_run_once_on_generated_files_is_named(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (lab / "config" / "published" / "ran-once.txt").write_text("# Studies.\nother\ntiny\n")
    assert main.main(["studies"]) == 0
    *_, once, trouble = capsys.readouterr().out.splitlines()
    assert once.endswith(": tiny."), "of those in the list, the studies that are shown"
    assert trouble.startswith("smith-bad")


def test_a_paper_that_no_study_is_of_is_refused(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["studies", "smyth"]) == 1
    error = capsys.readouterr().err
    assert "the command line: unknown paper 'smyth'" in error and "smith" in error


def test_a_paper_without_a_study_is_not_offered(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (lab / "config" / "published" / "jones.csv").write_text(CELLS)
    assert main.main(["studies", "jones"]) == 1
    error = capsys.readouterr().err
    assert "unknown paper 'jones'" in error and error.rstrip().endswith("Allowed: smith")


def test_a_paper_is_found_in_other_capitals(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["studies", "smith"]) == 0
    lines = capsys.readouterr().out
    assert main.main(["studies", "Smith"]) == 0
    assert capsys.readouterr().out == lines


def test_a_study_that_is_named_after_a_table_shows_it() -> None:
    page = (ROOT / "docs" / "reference" / "studies.md").read_text()
    rows = re.findall(r"^\| \[`([^`]+)`\]\(\S+\) \| ([^|]*) \|", page, re.MULTILINE)
    assert len(rows) == len(list((ROOT / "config" / "studies").rglob("*.yaml")))
    for name, shows in rows:
        for kind, number in re.findall(r"-(table|figure)(\d+[a-z]?)(?:-|$)", name):
            assert re.search(rf"{kind}s? .*\b{number}", shows.lower()), f"{name}: {shows!r}"
