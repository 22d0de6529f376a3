"""Tables of pages come from runs, and the rest of a page stays as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from make_results import clients, entry, plan, write_plan, write_run

from fl.base.errors import DataError
from fl.cli.main import main
from tools import pages

PAGE = """# A page

Methods over six draws:

<!-- fedloom show small --table draws --planned -->
what stood here before
<!-- end -->

and in pairs:

<!-- fedloom show small --table paired --planned -->
<!-- end -->

The end, without a mark.
"""


@pytest.fixture
def config(tmp_path: Path, any_name: None) -> Path:
    """A planned study: FedAvg on six draws, with 35 to 85 %, and Ditto five points above it."""
    runs = []
    for method, title, by in (("fedavg", "FedAvg", 0.0), ("ditto", "Ditto", 0.05)):
        for draw in range(6):
            write_run(tmp_path / "runs", f"{method}{draw}", clients([0.35 + by + draw / 10] * 2))
            place = f"dirichlet(alpha=0.3, seed={draw})"
            choice = {"title": title, "partition": place, "partition_id": f"part{draw}"}
            runs.append(entry(f"{method}{draw}", method, **choice))
    write_plan(tmp_path / "results", plan(runs, baseline="fedavg"))
    places = f"results: {tmp_path / 'results'}\nstore: {tmp_path / 'runs'}\n"
    (tmp_path / "config.yaml").write_text(f"studies: [small]\n{places}")
    return tmp_path


def test_a_page_is_written_whole(config: Path, capsys: pytest.CaptureFixture) -> None:
    expected = PAGE.replace("what stood here before\n", "")
    for table in ("draws", "paired"):
        command = f"show small --table {table} --planned"
        assert main([*command.split(), "--config", str(config)]) == 0
        mark = f"<!-- fedloom {command} -->\n"
        expected = expected.replace(mark, mark + capsys.readouterr().out)
    assert "| Ditto | **65.0 ± 18.7** |" in expected and "| Ditto | +5.0 |" in expected
    page = config / "page.md"
    page.write_text(PAGE)
    for time in ("once", "again"):
        pages.write([str(page), "--config", str(config)])
        assert page.read_text() == expected, time


def test_a_page_that_names_no_table_stays(config: Path, capsys: pytest.CaptureFixture) -> None:
    page = PAGE.replace("--table draws", "--table drawn")
    with pytest.raises(DataError, match="`fedloom show small --table drawn --planned` failed"):
        pages.filled(page, config)
    assert "Allowed: clients, draws" in capsys.readouterr().err


def test_a_page_without_marks_is_refused(config: Path) -> None:
    page = PAGE.replace("<!-- fedloom ", "<!-- fl ")
    with pytest.raises(DataError, match="no mark of a table"):
        pages.filled(page, config)
