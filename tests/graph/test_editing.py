"""What an edit trains, in place and in a clone: counted in the store, and read in the table."""

from __future__ import annotations

import json
import os
import signal
from copy import deepcopy

import project
import pytest
from project import REPORT, STUDY, Project, apart, fl, until

pytestmark = pytest.mark.graph


def test_learning_rates_and_seeds_train_what_they_touch_and_back_again_nothing(cloned: Project):
    before, table = cloned.values(), cloned.table()
    methods = deepcopy(STUDY["methods"])
    methods["fedavg"] = {"lr": 0.1}
    cloned.study(methods=methods)
    assert cloned.trained() == ["fedavg 0", "fedavg 1", "fedavg-ft 0", "fedavg-ft 1"]
    edited = cloned.values()
    assert apart(before, edited) == ["fedavg", "fedavg-ft"]
    for method in ("fedavg", "fedavg-ft"):
        assert (before[method]["value"].to_numpy() != edited[method]["value"].to_numpy()).any()

    cloned.study(seeds=[0, 1, 7])  # And the rate is what it was.
    assert cloned.trained() == ["fedavg 7", "fedavg-ft 7", "fedprox 7"]
    added = cloned.values()
    assert all(set(rows["seed"]) == {0, 1, 7} for rows in added.values())
    old = {m: rows[rows["seed"] != 7].reset_index(drop=True) for m, rows in added.items()}
    assert apart(before, old) == []

    cloned.study()
    assert cloned.trained() == []
    assert cloned.table() == table


def test_what_decides_no_number_trains_nothing(cloned: Project):
    table, report = cloned.table(), cloned.report()
    cloned.settings(execution={**project.SETTINGS["execution"], "threads": 2})
    cloned.write("config/studies/other.yaml", "seeds: [5]\n")
    cloned.edit("config/studies/small.yaml", "seeds:", "# Two are enough.\nseeds:")
    cloned.edit("fl/methods/fedprox.py", "by a proximal term.\n", "by a proximal term!\n")
    cloned.edit("fl/engine/simulate.py", "A finished round.\n", "A round that is over.\n")
    cloned.edit("fl/engine/simulate.py", "    running, total", "    # All.\n    running, total")
    assert cloned.trained(REPORT) == []
    assert cloned.table() == table
    assert cloned.report() == report
    assert "Nothing to be done" in cloned.snakemake("--dry-run")


def test_code_trains_what_uses_it_and_code_of_tables_and_report_makes_them_again(copied: Project):
    before = copied.values()
    method = "fl/methods/fedprox.py"
    copied.edit(method, "ProximalTerm(self.mu)", "ProximalTerm(1.5 * self.mu)")
    assert copied.trained() == ["fedprox 0", "fedprox 1"]
    after = copied.values()
    assert apart(before, after) == ["fedprox"]
    assert (before["fedprox"]["value"].to_numpy() != after["fedprox"]["value"].to_numpy()).any()
    copied.edit(method, "ProximalTerm(1.5 * self.mu)", "ProximalTerm(self.mu)")
    earlier = "\n\ndef _earlier_costs(record, store):\n    return {'rounds_before': 77}\n"
    copied.append("fl/report/tables.py", earlier)
    copied.append("fl/report/templates/report.css", "\n.edited { color: #123456; }\n")
    assert copied.trained(REPORT) == []
    assert apart(before, copied.values()) == []
    assert set(copied.runs()["rounds_before"]) == {77}
    assert "#123456" in copied.report()


def test_code_that_all_share_trains_everything(copied: Project):
    before = copied.values()
    rate = "\n\ndef learning_rate(training, *step):\n    return 1.5 * training.lr\n"
    copied.append("fl/api/training.py", rate)
    assert copied.trained() == sorted(copied.names().values())
    assert apart(before, copied.values()) == sorted(before)


def results(place: Project) -> dict[str, tuple[bytes, int]]:
    """Tables, metrics, curves and reports, with their times."""
    folders = ("tables", "metrics", "plots", "report")
    files = [path for name in folders for path in (place.root / "results" / name).rglob("*.*")]
    assert len(files) > 7
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_results_stay_until_new_ones_replace_them(copied: Project):
    before, report = results(copied), copied.report()
    training = {**STUDY["training"], "rounds": 3000}
    copied.study(methods={"fedavg": None}, seeds=[0], training=training)
    assert "output files have to be generated" in copied.snakemake("--dry-run")
    assert results(copied) == before
    mark = f"{REPORT} (out of date; `snakemake` makes it again)"
    assert fl(copied, "show", "small").splitlines()[-1] == f"report: {mark}"
    process = copied.start()
    until(lambda: bool(list(copied.root.glob("results/runs/*.partial/checkpoint/*"))))
    [lease] = copied.root.glob("results/runs/*.partial/lease.json")
    for number in (process.pid, json.loads(lease.read_text())["pid"]):
        os.kill(number, signal.SIGINT)  # As a terminal does.
    process.communicate(timeout=60)
    assert results(copied) == before
    [line] = [line for line in fl(copied, "status").splitlines() if REPORT in line]
    assert line == f"out of date  report {REPORT}; `snakemake` makes it again"

    copied.study(title="Another title")
    output = copied.snakemake()
    assert ": train " not in output
    assert "Another title" in copied.report() != report
    assert "out of date" not in fl(copied, "status")
    (copied.root / REPORT).write_text(report)  # As if killed between the tables and the report.
    assert "report of small" in copied.snakemake()
    assert "Another title" in copied.report()
