"""``fedloom store``: what it lists, finds, removes and moves."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import killing
import pandas as pd
import planning
import pytest
import shelving
import yaml
from planning import Planned

from fl.base import files
from fl.cli import main
from fl.plan import plan, plan_files
from fl.runner import environment
from fl.store.store import Store

Say = Callable[..., str]


@pytest.fixture
def place(planned: Callable[..., Planned]) -> Planned:
    """The tiny study with two methods and two seeds, planned and trained."""
    methods = {"fedavg": None, "fedprox": {"mu": 0.5}}
    # One after another: a run whose neighbour is there already has the bits of one with it.
    study = planned(seeds=[0, 1], methods=methods, execution={"backend": "loop"})
    for label in ("fedavg", "fedprox"):
        assert study.train(label) == 0
    plan.read_index(study.root / "config")
    return study


@pytest.fixture
def say(place: Planned, capsys: pytest.CaptureFixture[str]) -> Say:
    """``say("gc", "--yes")``: what the command prints."""

    def run(*arguments: str, exit_status: int = 0) -> str:
        capsys.readouterr()
        config = ("--config", str(place.root / "config"))
        assert main.main(["store", arguments[0], *config, *arguments[1:]]) == exit_status
        printed = capsys.readouterr()
        return printed.out + printed.err

    return run


def edit(place: Planned, **changes: object) -> None:
    """Change the study in its file."""
    path = place.root / "config" / "studies" / "tiny.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))


def truncate(place: Planned, run: str) -> None:
    path = place.root / "runs" / run / "metrics.parquet"
    os.truncate(path, path.stat().st_size // 2)


# ls


def test_ls_filters_by_method_and_by_study(place: Planned, say: Say):
    other = shelving.add(place.store())
    assert other in say("ls")
    of_method = say("ls", "--method", "fedprox")
    assert all(run in of_method for run in place.runs("fedprox"))
    plain = " / dirichlet(clients=4, alpha=0.5, min_samples=5) / mlp(hidden=[5])\n"
    assert of_method.count("  fedprox(mu=0.5)  synthetic(") == of_method.count(plain) == 2
    rows, total, _ = of_method.partition("2 runs")
    for column in (f"{datetime.now(UTC):%Y-%m-}", environment.version()):
        assert rows.count(column) == 2
    assert total
    of_study = say("ls", "tiny")
    assert other not in of_study and "4 runs" in of_study
    assert "error: " in say("ls", "no-such-study", exit_status=1)
    message = "--method: unknown method 'fedprx' (did you mean 'fedprox'?)"
    assert message in say("ls", "--method", "fedprx", exit_status=1)
    assert "has no finished run 'nothing'" in say("adopt", "nothing", exit_status=1)


def test_ls_shows_unfinished_and_damaged_runs(place: Planned, say: Say):
    [first, second] = place.runs("fedavg")
    (place.root / "runs" / first / "run.json").write_text("{}")
    place.store().remove(second)
    with killing.running(planning.train_and_die, place, "fedavg", "runs", 3) as child:
        child.join()
    said = say("ls")
    assert [x.split()[1] for x in said.splitlines() if first in x] == ["damaged"]
    assert [x.split()[1] for x in said.splitlines() if second in x] == ["unfinished"]


EVIL = "\x1b[2J\x07\u202e\x9b1A\x7f\rfedavg\nall is well"


def test_nothing_of_a_strangers_run_is_obeyed_by_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    theirs = Store(tmp_path / "theirs")
    run = shelving.add(theirs, method=EVIL)
    bad = shelving.add(theirs, method=EVIL, seed=1)
    for each, more in ((run, {}), (bad, {EVIL: {"size": 1, "sha256": ""}})):
        path = theirs.root / each / "run.json"
        record = files.read_sealed(path)
        record |= {"state": EVIL, "files": {**record["files"], **more}}
        seal = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
        path.write_text(json.dumps({**record, "seal": seal}))
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo(EVIL))
    ours, there = ("--store", str(tmp_path / "ours")), ("--store", str(theirs.root))
    for status, command in (
        (0, ["ls", *there]),
        (0, ["ls", "--json", *there]),
        (1, ["verify", *there]),
        (1, ["import", *ours, str(theirs.root)]),
        (1, ["import", *ours, str(tmp_path / "evil.tar")]),
        (1, ["ls", *ours]),  # Nothing was imported, so there is no such folder.
    ):
        assert main.main(["store", *command]) == status
        printed = capsys.readouterr()
        said = printed.out + printed.err
        assert all(line.isprintable() for line in said.split("\n"))
        assert not any(line.startswith("all is well") for line in said.split("\n"))
        # A state that no run has is damage, which a list says in a word.
        assert "2J" in said or command[0] == "ls"
    assert not Store(tmp_path / "ours").runs(), "neither of them is a run"


# verify


def test_verify_finds_what_was_truncated_and_removes_it_if_asked(place: Planned, say: Say):
    assert "4 runs checked, 0 damaged" in say("verify")
    damaged, whole = place.runs("fedavg")
    truncate(place, damaged)
    said = say("verify", exit_status=1)
    assert f"{damaged}/metrics.parquet: has" in said and "1 damaged" in said
    assert place.store().has(damaged)
    assert "1 run checked, 0 damaged" in say("verify", whole)

    assert "1 run removed" in say("verify", "--remove")
    assert place.store().runs() == sorted({whole, *place.runs("fedprox")})
    assert place.train("fedavg") == 0
    assert "4 runs checked, 0 damaged" in say("verify")


# gc


def test_gc_shows_what_no_study_needs_and_then_removes_it(place: Planned, say: Say):
    edit(place, methods={"fedavg": None})
    plan.read_index(place.root / "config")
    said = say("gc")
    assert all(run in said for run in place.runs("fedprox"))
    assert not any(run in said for run in place.runs("fedavg"))
    assert "2 runs that no study in" in said and "nothing was removed" in said
    assert len(place.store().runs()) == 4

    assert "2 runs removed" in say("gc", "--yes")
    assert place.store().runs() == sorted(place.runs("fedavg"))
    assert "0 runs that no study in" in say("gc", "--yes")


def test_gc_plans_no_further_study_once_all_runs_are_needed(
    place: Planned, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = place.root / "config" / "studies" / "tiny.yaml"
    tiny.with_name("another.yaml").write_text(tiny.read_text())
    (place.root / "results" / "plan" / "plan.json").unlink()
    names, make = [], plan.make

    def record(folder: Path, studies: Sequence[str], checked: bool = True) -> plan.Plan:
        names.extend(studies)
        return make(folder, studies, checked)

    monkeypatch.setattr(plan, "make", record)
    assert "0 runs that no study" in say("gc")
    assert names == ["tiny"], "that of config.yaml comes first"
    shelving.add(place.store())
    say("gc")
    assert names == ["tiny", "tiny", "another"]


def test_gc_that_removes_believes_no_plan_that_was_written(place: Planned, say: Say):
    results = place.root / "results"
    known = plan_files.read_index(results)
    assert known is not None
    tiny = replace(known.studies["tiny"], bundles=[])
    plan_files.write(
        plan_files.index_file(results), replace(known, studies={"tiny": tiny}, bundles={})
    )
    assert "4 runs that no study" in say("gc")
    assert "0 runs that no study" in say("gc", "--yes")


def test_gc_keeps_what_any_study_and_what_the_written_plan_needs(place: Planned, say: Say):
    edit(place, seeds=[0])
    assert "0 runs that no study" in say("gc", "--yes")  # A pipeline may be at the plan.
    plan.read_index(place.root / "config")
    other = place.root / "config" / "studies" / "other.yaml"
    tiny = yaml.safe_load(other.with_name("tiny.yaml").read_text())
    other.write_text(yaml.safe_dump({**tiny, "seeds": [1]}))
    assert "0 runs that no study" in say("gc", "--yes")
    other.unlink()
    assert "2 runs removed" in say("gc", "--yes")
    assert len(place.store().runs()) == 2


def test_gc_removes_nothing_while_a_study_cannot_be_planned(place: Planned, say: Say):
    other = shelving.add(place.store())
    wrong = place.root / "config" / "studies" / "wrong.yaml"
    wrong.write_text(yaml.safe_dump({"datasets": ["digits"], "models": [{"mlp": {"hidden": [0]}}]}))
    said = say("gc", "--yes", exit_status=1)
    assert "error: wrong cannot be planned: " in said and "nothing was removed" in said
    assert place.store().has(other)
    wrong.unlink()
    assert "1 run removed" in say("gc", "--yes", "--other-code")


def test_gc_spares_what_other_code_made_unless_it_is_asked_by_name(place: Planned, say: Say):
    """Runs of a later or earlier version of the code are those of somebody, or of tomorrow."""
    other, later = shelving.add(place.store()), shelving.add(place.store(), seed=1)
    edit(place, methods={"fedavg": None})
    plan.read_index(place.root / "config")
    [first, second] = place.runs("fedprox")
    said = say("gc")
    assert "2 runs that no study in" in said and other not in said
    assert "2 more runs of earlier, later or edited code" in said
    [needed, _] = place.runs("fedavg")
    wrong = say("gc", "--yes", needed, exit_status=1)
    assert f"{needed}: " in wrong
    assert "1 run removed" in say("gc", "--yes", first)
    assert "1 run removed" in say("gc", "--yes")
    assert not place.store().has(second) and place.store().has(other)
    assert "1 run removed" in say("gc", "--yes", other)
    assert "1 run removed" in say("gc", "--yes", "--other-code")
    assert place.store().runs() == sorted(place.runs("fedavg")) and not place.store().has(later)


def test_a_plan_of_an_earlier_version_is_told_without_an_error_of_python(place: Planned, say: Say):
    path = place.root / "results" / "plan" / "plan.json"
    path.write_text(json.dumps({"runs": [], "studies": {}}))
    said = say("gc", exit_status=1)
    assert "plan.json" in said and "KeyError" not in said
    assert "Try: `fedloom plan --write`" in said


def hold(root: Path, run: str) -> None:
    with Store(root).open(run) as work:
        assert work is not None
        work.checkpoints.mkdir()
        (root / "holding").touch()
        time.sleep(600)


def test_gc_never_removes_a_run_that_is_being_computed(place: Planned, say: Say):
    run, other = "a" * 16, shelving.add(place.store())
    with killing.running(hold, place.root / "runs", run):
        end = time.monotonic() + 300
        while not (place.root / "runs" / "holding").exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        said = say("gc", "--yes", "--other-code", exit_status=1)
        assert f"{run}.partial: process" in said and "is computing this run" in said
        assert "1 run removed" in said and not place.store().has(other)
        assert (place.root / "runs" / f"{run}.partial" / "checkpoint").exists()
    assert "1 run removed" in say("gc", "--yes")
    assert not (place.root / "runs" / f"{run}.partial").exists()


def test_gc_removes_prepared_data_that_was_begun_and_left(place: Planned, say: Say):
    prepared = place.root / "data" / "prepared"
    left, fresh = prepared / ".a-1.2-3.partial", prepared / ".b-1.2-3.partial"
    for path in (left, fresh):
        path.mkdir()
        (path / "x.npy").write_bytes(b"x")
    long_ago = time.time() - 2 * 86400
    for path in (left / "x.npy", left):
        os.utime(path, (long_ago, long_ago))
    assert f"{left}: unfinished file of a stopped process" in say("gc")
    say("gc", "--yes")
    assert not left.exists() and fresh.exists()


# export and import


@pytest.mark.parametrize("name", ["shared", "runs.tar"])
def test_runs_go_to_a_shared_store_and_come_back(place: Planned, say: Say, name: str):
    shared = str(place.root / name)
    assert say("export", shared).strip() == "4 new"
    before = {run: place.files(run) for run in place.store().runs()}
    for run in before:
        place.store().remove(run)
    assert say("import", shared).strip() == "4 new"
    assert {run: place.files(run) for run in place.store().runs()} == before
    assert say("import", shared).strip() == "4 existing"
    assert "4 runs checked, 0 damaged" in say("verify")


def test_studies_and_the_plan_choose_what_goes(place: Planned, say: Say):
    other = shelving.add(place.store())
    assert "4 new" in say("export", str(place.root / "a"), "tiny")
    assert "4 new" in say("export", str(place.root / "b"), "--planned")
    assert "5 new" in say("export", str(place.root / "c"))
    assert Store(place.root / "c").has(other)
    place.store().remove(place.runs("fedavg")[0])
    said = say("export", str(place.root / "d"), "--planned", exit_status=1)
    assert (
        ": 1 run of the plan" in said
        and place.runs("fedavg")[0] in said
        and not (place.root / "d").exists()
    )


# All at once


def test_gc_verify_and_import_while_runs_are_trained(place: Planned, say: Say):
    """Whatever else is done to the store meanwhile, training ends with the same runs."""
    runs = place.store().runs()
    before = {run: place.files(run) for run in runs}
    shared = place.root / "shared"
    say("export", str(shared))
    for run in runs:
        place.store().remove(run)
    surplus = shelving.add(place.store())
    over = threading.Event()
    failures: list[str] = []

    def tidy() -> None:
        config = ["--config", str(place.root / "config")]
        remove_all = ["gc", *config, "--yes", "--other-code"]
        commands = (["verify", *config, "--remove"], remove_all)
        while not over.is_set():
            failures.extend(c[0] for c in commands if main.main(["store", *c]) != 0)

    thread = threading.Thread(target=tidy)
    thread.start()
    try:
        with (
            killing.running(train, place, "fedavg") as first,
            killing.running(train, place, "fedprox") as second,
            killing.running(bring, shared, place.root / "runs") as third,
        ):
            for child in (first, second, third):
                child.join(120)
                assert child.exitcode == 0
    finally:
        over.set()
        thread.join()
    assert failures == []
    assert not place.store().has(surplus)
    assert {run: place.files(run) for run in place.store().runs()} == before
    assert place.store().unfinished() == []


def train(place: Planned, label: str) -> None:
    assert place.train(label) == 0


def bring(source: Path, target: Path) -> None:
    from fl.store import import_export

    for run in Store(source).runs():
        moved = import_export.copy_run(run, Store(source), Store(target))
        assert moved.outcome in (import_export.NEW, import_export.EXISTING, import_export.BUSY)


def rows_again(place: Planned, run: str, edit: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    """Give a run other rows, and seal its record again."""
    folder = place.root / "runs" / run
    changed = edit(pd.read_parquet(folder / "metrics.parquet")).reset_index(drop=True)
    files.write_table(folder / "metrics.parquet", changed)
    record = place.store().record(run)
    named = tuple(record.pop("files"))
    files.write_sealed(folder / "run.json", record, files=named)


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda rows: rows.assign(client=rows["client"].max() - rows["client"]), "partition"),
        (lambda rows: rows[rows["client"] < 2], "training losses of 2 clients. Allowed: 4"),
        (lambda rows: rows[(rows["round"] != 1) | (rows["split"] == "train")], "round 1 is not"),
        (lambda rows: rows.drop(rows.index[rows["split"] == "test"][:1]), "evaluated rounds"),
        (lambda rows: rows[(rows["client"] > 0) | (rows["split"] == "train")], "no test row"),
        (lambda rows: rows[rows["split"] == "train"], "no test row"),
    ],
    ids=["renumbered", "clients cut", "round cut", "row cut", "test cut", "all tests cut"],
)
def test_rows_that_were_changed_and_sealed_again_are_damaged(
    place: Planned,
    say: Say,
    tmp_path: Path,
    edit: Callable[[pd.DataFrame], pd.DataFrame],
    problem: str,
):
    """The record's rounds and participants, and the clients of the partition, show it."""
    run = place.runs("fedavg")[0]
    assert "0 damaged" in say("verify")
    rows_again(place, run, edit)
    said = say("verify", exit_status=1)
    assert f"{run}/metrics.parquet: " in said and problem in said and "1 damaged" in said
    archive, ours = place.root / "runs", ("--store", str(tmp_path / "ours"))
    said = say("import", str(archive), *ours, exit_status=1)
    assert "3 new, 1 damaged" in said and problem in said
