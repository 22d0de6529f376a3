"""The progress of runs, told from the store; and the notes that a run writes on its way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from make_results import write_run
from planning import ROOT, Planned, signalled, write_config

from fl.base.errors import EXIT_LEFT
from fl.cli import main
from fl.plan import plan, result_paths
from fl.plan.bundle import read as read_bundle
from fl.plan.config import Execution
from fl.store import workspace
from fl.store.lease import take
from fl.store.workspace import Attempt
from fl.workflow import jobs, markers, monitor, status
from fl.workflow.estimate import Rates
from fl.workflow.jobs import Job

Plan = Callable[..., Planned]


def standings(study: Planned, *labels: str) -> dict[str, status.RunStatus]:
    """By run."""
    told = status.run_statuses([read_bundle(study.spec(label)) for label in labels], study.store())
    return {standing.run: standing for standing in told}


def events(study: Planned, run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in study.log(run).read_text().splitlines()]


def test_a_run_is_waiting_then_interrupted_then_done(planned: Plan) -> None:
    study = planned()
    [run] = study.runs("fedavg")
    rates = Rates(study.store())
    assert [each.state for each in standings(study, "fedavg").values()] == ["waiting"]
    with signalled(after=3):
        assert study.train("fedavg") == EXIT_LEFT
    [standing] = standings(study, "fedavg").values()
    assert (standing.state, standing.round, standing.remaining_share) == ("interrupted", 3, 0.5)
    assert "0 of 1 runs done, 1 interrupted, time left unknown" in status.line([standing], rates)
    assert study.train("fedavg") == 0
    [standing] = standings(study, "fedavg").values()
    assert (standing.state, standing.remaining_share) == ("done", 0.0)
    assert status.line([standing], rates) == "1 of 1 runs done"

    told = events(study, run)
    kinds = [(line["event"], line.get("round")) for line in told]
    assert kinds == [
        ("begun", 0),
        *(("round", number) for number in (1, 2, 3)),
        ("left", 3),
        ("begun", 3),
        *(("round", number) for number in (4, 5, 6)),
        ("finished", None),
    ]
    assert told[-1]["state"] == "complete"
    assert told[0]["process"] == os.getpid()
    assert told[1]["loss"] > told[-2]["loss"] > 0
    rows = study.store().metrics(run)
    first = rows[(rows["round"] == 1) & (rows["split"] == "train")]["value"].mean()
    assert told[1]["loss"] == pytest.approx(first)


def test_who_holds_a_run_is_told_and_one_that_is_gone_is_not(planned: Plan) -> None:
    study = planned(seeds=[0, 1])
    first, second = study.runs("fedavg")
    store = study.store()
    with store.open(first) as workspace:
        assert workspace is not None
        (workspace.checkpoints / "round-000004").mkdir(parents=True)
        with store.open(second):
            by_run = standings(study, "fedavg")
            assert {each.state for each in by_run.values()} == {"running"}
            assert {each.round for each in by_run.values()} == {4}, "a stack has one checkpoint"
            assert f"process {os.getpid()} on" in by_run[first].note
        assert standings(study, "fedavg")[second].state == "waiting"
        path = store.partial(first) / "lease.json"
        os.utime(path, (time.time() - 600,) * 2)
        assert standings(study, "fedavg")[first].state == "interrupted"
    lease = take(store.partial(second) / "lease.json", lambda: False, beat=60, patience=60)
    assert lease is not None
    assert standings(study, "fedavg")[second].state == "running"
    content = json.loads(lease.path.read_text())
    lease.release()
    lease.path.parent.mkdir(exist_ok=True)
    lease.path.write_text(json.dumps(content))
    assert standings(study, "fedavg")[second].state == "waiting", "that process has ended"


def test_a_failed_run_is_told_until_it_is_tried_again(planned: Plan, capsys) -> None:
    study = planned(methods={"fedavg": None, "local": None})
    study.change("fedavg", lambda b: b["runs"][0]["code"].update(method="another"))
    [run] = study.runs("fedavg")
    assert study.train("fedavg") == 1
    [standing] = standings(study, "fedavg").values()
    assert standing.state == "failed"
    assert "the code of its method changed after it was planned" in standing.note
    [line] = status.unfinished_lines([standing])
    assert line == f"  {run}  {standing.title}: round 0 of 6, {standing.note}"
    *named, more = status.unfinished_lines([standing] * 43)
    assert (named, more) == ([line] * 40, "  and 3 more; `fedloom status` lists all")
    assert events(study, run)[-1]["event"] == "failed"
    assert events(study, run)[-1]["error"] == standing.note
    with study.store().open(run):
        assert standings(study, "fedavg")[run].state == "running"


def test_how_an_attempt_ended_is_told_of_all_runs_of_a_stack(planned: Plan) -> None:
    """One that was killed says nothing; what that was is noted, and the next asks for memory."""
    study = planned(seeds=[0, 1], execution={"backend": "stacked"})
    runs, store = study.runs("fedavg"), study.store()
    with signalled(after=3):
        assert study.train("fedavg") == EXIT_LEFT

    def memory(each: int) -> int:
        execution = Execution(memory_mb=each)
        job = Job("train", "", [], runs, [], [], [], execution, str(store.root), most_mb=7000)
        return jobs.memory(job)

    told = standings(study, "fedavg").values()
    assert {(each.state, each.round) for each in told} == {("interrupted", 3)}
    assert {each.note for each in told} == {"it was cancelled"}
    assert memory(4000) == 4000
    for run in runs:
        attempt = Attempt("PBS", "7.host", "train.log", memory_mb=4000)
        workspace.write_attempt(store.partial(run), 2, attempt)
    for each in standings(study, "fedavg").values():
        assert each.note.endswith("(possibly out of memory) (PBS job 7.host, log train.log)")
    assert {store.attempts(run)[-1].ended for run in runs} == {"killed"}
    assert (memory(3000), memory(4000), memory(5000)) == (3000, 7000, 5000)
    (store.partial(runs[0]) / "attempt-3.json").write_text('{"ended": 5}')
    assert len(store.attempts(runs[0])) == 2


def test_the_command_says_it_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path, {"methods": {"fedavg": None, "local": None}})
    arguments = ["status", "--config", str(config)]
    assert main.main(arguments) == 1
    assert "Try: `fedloom plan --write`" in capsys.readouterr().err
    plan.read_index(config)
    specs = sorted((tmp_path / "results" / "plan" / "bundles").iterdir())
    store = ["--store", str(tmp_path / "runs")]
    assert main.main(["train", str(specs[0]), *store]) == 0
    with signalled(after=2):
        main.main(["train", str(specs[1]), *store])
    capsys.readouterr()
    assert main.main(arguments) == 0
    title, first, line = capsys.readouterr().out.splitlines()
    assert title.startswith("plan of ")
    assert first.startswith("interrupted  ")
    assert first.endswith("seed 0: round 2 of 6, it was cancelled")
    assert line.startswith("1 of 2 runs done, 1 interrupted, about ")
    assert line.endswith(" s left")


def test_a_watch_says_what_has_changed_and_how_it_ended(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    planned = plan.read_index(config)
    said: list[str] = []
    watching = monitor.ProgressMonitor(planned.settings, said.append, pause=0.05)
    watching.start()
    end = time.monotonic() + 300
    while not said and time.monotonic() < end:
        time.sleep(0.01)
    [spec] = (tmp_path / "results" / "plan" / "bundles").iterdir()
    assert main.main(["train", str(spec), "--store", str(tmp_path / "runs")]) == 0
    watching.stop()
    assert said[0] == "0 of 1 runs done, time left unknown before a similar run has finished"
    assert said[-1] == "1 of 1 runs done"
    assert len(said) == len(set(said))


def test_a_watch_counts_the_selected_runs_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """`fedloom run --only` trains these; the rest of the plan was not asked for."""
    methods = {"fedavg": None, "local": None, "ft": {"method": "finetune", "start": "fedavg"}}
    config = write_config(tmp_path, {"methods": methods})
    planned = plan.read_index(config)
    counts = {}
    for only in ("method=local", "method=ft"):
        said: list[str] = []
        selected = markers.selected_runs(planned, [only])
        watching = monitor.ProgressMonitor(planned.settings, said.append, selected=selected)
        watching.stop()
        watching.start()
        watching.join()
        counts[only] = said[-1].partition(",")[0]
    starting = "0 of 2 runs done"
    assert counts == {"method=local": "0 of 1 runs done", "method=ft": starting}
    rest = monitor.status.bundles(tmp_path / "results", selected=())
    assert rest == []


def test_the_end_of_a_failed_workflow_tells_of_reports_of_what_is_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path)
    study = yaml.safe_load((config / "studies" / "tiny.yaml").read_text())
    other = yaml.safe_dump({**study, "methods": {"local": None}}, sort_keys=False)
    (config / "studies" / "other.yaml").write_text(other)
    planned = plan.read_index(config, ["tiny", "other"])
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr(monitor.atexit, "register", at_exit.append)

    def last_lines(selected: list[str] | None = None) -> str:
        said: list[str] = []
        monitor.print_failures_at_exit(planned.settings, said.append, selected)
        at_exit.pop()()
        return "\n".join(said)

    pages = [result_paths.page(tmp_path / "results", name) for name in planned.studies]
    assert not any(str(page) in last_lines() for page in pages), "none exists"
    pages[0].parent.mkdir()
    for page in pages:
        page.touch()
    assert all(str(page) in last_lines() for page in pages)
    assert not any(str(page) in last_lines([]) for page in pages), "--only makes no report again"
    [run] = planned.bundles[planned.studies["other"].bundles[0]].runs
    write_run(Path(planned.settings.store), run, [])
    assert [str(page) in last_lines() for page in pages] == [True, False], "that one is complete"


def test_a_log_that_cannot_be_written_stops_no_run(planned: Plan, caplog) -> None:
    study = planned()
    (study.root / "results").mkdir(exist_ok=True)
    (study.root / "results" / "logs").write_text("no folder")
    assert study.train("fedavg") == 0
    assert sum("cannot be written" in message for message in caplog.messages) == 1


Points = dict[int, float]


def of_tensorboard(logs: Path, run: str) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [folder] = (logs / "tensorboard").glob(f"*/seed-0-{run[:6]}")
    written = EventAccumulator(str(folder)).Reload()
    return {point.step: point.value for point in written.Scalars("accuracy/test, global")}


def of_mlflow(logs: Path, run: str) -> Points:
    from mlflow.tracking import MlflowClient

    client = MlflowClient((logs / "mlflow").as_uri())
    numbers = [each.experiment_id for each in client.search_experiments()]
    [there] = client.search_runs(numbers, f"tags.fedloom = '{run}'")
    assert there.info.status == "FINISHED" and there.info.run_name == f"seed-0-{run[:6]}"
    history = client.get_metric_history(there.info.run_id, "accuracy/test global")
    return {point.step: point.value for point in history}


def of_wandb(logs: Path, run: str) -> Points:
    """Its files are logs of LevelDB after 7 bytes: a record has 4 bytes of checksum, 2 of length
    and 1 of kind before it; those of 3 rounds stay within the first block.
    """
    from wandb.proto import wandb_internal_pb2

    points: Points = {}
    for path in (logs / "wandb").glob("wandb/offline-run-*/*.wandb"):
        assert f"-{run}-" in path.parent.name
        content, place = path.read_bytes(), 7
        while place + 7 <= min(len(content), 2**15):
            length = int.from_bytes(content[place + 4 : place + 6], "little")
            record = wandb_internal_pb2.Record()
            record.ParseFromString(content[place + 7 : place + 7 + length])
            values = {
                "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                for item in record.history.item
            }
            if "accuracy/test, global" in values:
                points[int(values["_step"])] = values["accuracy/test, global"]
            place += 7 + length
    return points


@pytest.mark.parametrize("read", [of_tensorboard, of_mlflow, of_wandb])
def test_other_programs_get_the_curves_over_a_resume(
    planned: Plan, read: Callable[[Path, str], Points]
) -> None:
    """Each in its own store, read by its own package."""
    program = read.__name__.removeprefix("of_")
    pytest.importorskip(program)
    study = planned(execution={"log": [program]})
    [run] = study.runs("fedavg")
    with signalled(after=3):
        study.train("fedavg")
    assert study.train("fedavg") == 0
    rows = study.store().metrics(run)
    chosen = rows[(rows["metric"] == "accuracy") & (rows["split"] == "test")]
    expected = chosen.groupby("round")["value"].mean().to_dict()
    assert read(study.root / "results" / "logs", run) == pytest.approx(expected, abs=1e-6)


def test_the_workflow_starts_without_the_modules_of_reports() -> None:
    code = "import sys; from fl.workflow import session; print('fl.report' in sys.modules)"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "False\n"
