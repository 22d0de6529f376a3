"""Runs that fail, runs that diverge, things that are removed: the rest stays, and what is needed
comes back."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml
from project import REPORT, REPOSITORY, SETTINGS, STUDY, TABLE, Project, apart

from fl.report.tables import read_plan_hash

pytestmark = pytest.mark.graph


def test_failing_and_diverged_runs_are_named_and_take_nothing_with_them(copied: Project):
    before, runs = copied.values(), {name: run for run, name in copied.names().items()}
    shutil.copy(Path(__file__).with_name("brittle.py"), copied.root / "fl" / "methods")
    copied.write("broken", "")
    changed = {"fedprox": {"mu": 0.5, "lr": 1e6}}
    copied.study(methods={"brittle": None, **STUDY["methods"], **changed})
    records = copied.records()
    for name in ("fedavg 1", "fedavg-ft 1"):
        shutil.rmtree(copied.root / "results" / "runs" / runs[name])
    output = copied.snakemake(exit_status=1)

    trained = ["brittle 0", "fedavg 1", "fedavg-ft 1", "fedprox 0", "fedprox 1"]
    assert copied.since(records) == trained, "one that starts from another run of the job, too"
    assert output.count(": train ") == 1, "seconds of work are one job"
    assert "7 of 8 runs done, 1 failed" in output
    log = copied.log("brittle 1")
    assert str(log.relative_to(copied.root)) in output
    assert "this seed has no luck" in output
    end = output[output.index("Some jobs failed.") :]
    assert re.search(rf"{copied.run('brittle 1')} .*, seed 1: round 0 of \d+, .*no luck", end)
    assert REPORT in end
    assert "pruned" not in output, "what cuts a figure's font tells it to nobody"
    assert "Traceback" in log.read_text()
    states = dict.fromkeys(copied.names().values(), "complete")
    states |= {"fedprox 0": "diverged", "fedprox 1": "diverged", "brittle 1": "missing"}
    assert copied.states() == states
    assert read_plan_hash(copied.root / TABLE) == (copied.plan()["hash"], False)
    after = copied.values()
    assert apart(before, after) == ["brittle", "fedprox"]
    assert set(after["brittle"]["seed"]) == {0}
    assert "1 missing" in copied.report()
    assert copied.run("brittle 1") in copied.report()

    (copied.root / "broken").unlink()
    assert copied.trained(REPORT) == ["brittle 1"]
    assert read_plan_hash(copied.root / TABLE) == (copied.plan()["hash"], True)
    assert copied.states() == {**states, "brittle 1": "complete"}
    assert set(copied.values()["brittle"]["seed"]) == {0, 1}
    assert apart(after, copied.values()) == ["brittle"]
    assert "1 missing" not in copied.report()
    assert "2 diverged" in copied.report()


def test_what_is_removed_comes_back_and_nothing_else(cloned: Project):
    table, results = cloned.table(), cloned.root / "results"
    (results / "tables" / "small.parquet").unlink()
    for path in (results / "markers").iterdir():
        path.unlink()
    shutil.rmtree(results / "runs" / cloned.run("fedprox 0"))
    (results / "runs" / cloned.run("fedavg 1") / "final.safetensors").unlink()
    assert cloned.trained() == ["fedavg 1", "fedprox 0"]
    assert cloned.table() == table


def test_folders_may_have_any_name_that_a_shell_would_run(copied: Project):
    folder = "a 'b; touch pwned; $(touch pwned)"
    hostile = f"{folder} #"  # Which Snakemake's own --config would take for a comment.
    run = copied.run("fedprox 0")
    shutil.move(copied.root / "results", copied.root / hostile)
    shutil.move(copied.root / "config", copied.root / folder)
    settings = {**SETTINGS, "results": hostile, "store": f"{hostile}/runs"}
    copied.write(f"{folder}/config.yaml", yaml.safe_dump(settings))
    results = copied.root / hostile
    shutil.rmtree(results / "runs" / run)
    table = (results / "tables" / "small.parquet").read_bytes()
    output = copied.snakemake("--config", f"config={folder}")
    assert output.count(": train ") == 1
    assert (results / "tables" / "small.parquet").read_bytes() == table
    assert (results / "report" / "small.html").exists()
    assert not list(copied.root.rglob("pwned"))


def test_every_rule_quotes_what_it_tells_a_shell():
    files = [REPOSITORY / "workflow" / "Snakefile", *(REPOSITORY / "workflow").rglob("*.smk")]
    commands = [
        command for file in files for command in re.findall(r'shell[:(]\s*"(.*)"', file.read_text())
    ]
    assert len(commands) == 7
    assert not [word for c in commands for word in re.findall(r"{[^}]*}", c) if ":q}" not in word]
