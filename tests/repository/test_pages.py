"""Tables of pages come from runs, and the rest of a page stays as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from make_results import clients, entry, plan, write_plan, write_run

from fl.base.errors import DataError
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

WRITTEN = """# A page

Methods over six draws:

<!-- fedloom show small --table draws --planned -->
Final test accuracy (%): mean over clients, then mean ± standard deviation over 6 draws of data or \
partition. Best of each setting in bold.

| Method | digits · dirichlet(alpha=0.3) · mlp |
| :--- | ---: |
| FedAvg | 60.0 ± 18.7 |
| Ditto | **65.0 ± 18.7** |

Differences in accuracy (%) are tested over 6 draws (exact sign-flip test, of Student's t over \
draws, 5 %). The draws share training seeds: first networks, batches, participants and \
noise are the same in all of them, so that they repeat the data and not the training. Ahead of \
FedAvg: Ditto.
<!-- end -->

and in pairs:

<!-- fedloom show small --table paired --planned -->
Against FedAvg in pairs: mean difference of final test accuracy (%) over draws of data or \
partition, each by its mean over clients and training seeds, with 95 % bootstrap interval.

| Method | difference | 95 % | p | corrected<br>p | verdict | equal | better | \
worse | over |
| :--- | ---: | ---: | ---: | ---: | :--- | ---: | ---: | ---: | ---: |
| Ditto | +5.0 | +5.0 to +5.0 | 0.031 | 0.031 | ahead |  | 100.0 | 0.0 | 6 draws |

Equal: the mean is within one point of 0, by two one-sided tests, corrected likewise. p: exact \
sign-flip test, of Student's t over draws. Corrected: for all comparisons of the table, by \
step-down maxT; a method is called ahead or behind only if it is at \
most 0.05. Uninformative: equal to another method in every digit, both err on less than one test \
sample of a draw, or both as often as the majority predictor. Better, worse: share of clients (%). \
Setting: digits · dirichlet(alpha=0.3) · mlp.
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


def test_a_page_is_written_whole(config: Path) -> None:
    page = config / "page.md"
    page.write_text(PAGE)
    pages.write([str(page), "--config", str(config)])
    assert page.read_text() == WRITTEN
    pages.write([str(page), "--config", str(config)])
    assert page.read_text() == WRITTEN, "and is the same the next time"


def test_a_page_that_names_no_table_stays(config: Path, capsys: pytest.CaptureFixture) -> None:
    page = PAGE.replace("--table draws", "--table drawn")
    with pytest.raises(DataError, match="`fedloom show small --table drawn --planned` failed"):
        pages.filled(page, config)
    assert "Allowed: clients, draws" in capsys.readouterr().err
