"""Runs that go on from the kept state of stored ones with fewer rounds, to the bytes of all rounds
at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import killing
import planning
import pytest
from planning import Planned

from fl.base import identity
from fl.cli import main
from fl.engine import client_states
from fl.plan import continuation, plan
from fl.store import run_check

Plan = Callable[..., Planned]

KEPT = {"keep_state": True, "checkpoint_every": 1}

METHODS: dict[str, Any] = {
    "fedavg": {"keep_optimizer": True},
    "scaffold": {"participation": 0.5},
    "ditto": None,
    "top-k": {
        "method": "fedavg",
        "momentum": 0.0,
        "upload_filters": {"top-k": {"share": 0.25}},
    },
    "adaptive": {"method": "fedprox", "mu": 0.1, "adapt": True},
    "tuned": {"method": "finetune", "start": "fedavg", "rounds": 3},
    "buffered": {
        "method": "ditto",
        "devices": {"equal": {"speed": 1e4}},
        "asynchronous": {"fedbuff": {"size": 2, "concurrency": 3}},
    },
    "cached": {
        "devices": {"equal": {"speed": 1e4}},
        "method": "fedavg",
        "asynchronous": {"ca2fl": {"size": 1, "concurrency": 4}},
    },
}


def lengthened(study: Planned, label: str, rounds: int) -> list[str]:
    """Give the runs of a bundle another number of rounds; their new names."""
    study.change(
        label,
        lambda bundle: [run["spec"]["training"].update(rounds=rounds) for run in bundle["runs"]],
    )
    return study.runs(label)


def first_round(study: Planned, run: str) -> int:
    """The round after which a run began."""
    return int(study.store().record(run)["execution"]["stretches"][-1]["after"])


@pytest.mark.parametrize("backend", ["stacked", "loop"])
def test_more_rounds_give_the_bytes_of_all_rounds_at_once(planned: Plan, backend: str) -> None:
    """The round after which they go on is evaluated as a last one alone."""
    training = {**planning.STUDY["training"], "rounds": 3, "evaluate_every": 2}
    execution = {**KEPT, "backend": backend}
    labels = [*METHODS] if backend == "stacked" else ["ditto"]
    methods = {label: METHODS[label] for label in labels}
    study = planned(
        methods=methods,
        training=training,
        seeds=[0, 1],
        keep_weights=True,
        keep_predictions=True,
        execution=execution,
    )
    for label in labels:
        assert study.train(label) == 0 and study.train(label, "at-once") == 0
    for label in labels:
        runs = lengthened(study, label, 7)
        assert study.train(label) == 0
        for run in runs:
            assert first_round(study, run) == 3
        assert not [*study.root.glob("runs/*.partial")]
    for path in study.root.glob("at-once/*/state.safetensors"):
        path.unlink()
    for label in labels:
        assert study.train(label, "at-once") == 0
        for run in study.runs(label):
            files = study.files(run)
            assert {"state.safetensors", "final.safetensors", "metrics.parquet"} <= {*files}
            assert files == study.files(run, "at-once")
            assert not run_check.find_problems(study.store(), run)
            records = [study.store(name).record(run) for name in ("runs", "at-once")]
            for key in records[0].keys() - {"date", "seconds", "seal", "execution"}:
                assert records[0][key] == records[1][key], key
            assert "traces.safetensors" in files or label != "adaptive"


def train_in_files_and_die(*arguments: Any) -> None:
    """`planning.train_and_die` of clients in files."""
    client_states.MEMORY_BYTES = 0
    planning.train_and_die(*arguments)


@pytest.mark.parametrize("label", ["ditto", "buffered"])
def test_clients_in_files_go_on_and_a_kill_on_the_way_changes_no_byte(
    planned: Plan, monkeypatch: pytest.MonkeyPatch, label: str
) -> None:
    training = {**planning.STUDY["training"], "rounds": 3}
    methods = {label: METHODS[label]}
    study = planned(methods=methods, training=training, seeds=[0, 1], execution=KEPT)
    with monkeypatch.context() as patch:
        patch.setattr(client_states, "MEMORY_BYTES", 0)
        assert study.train(label) == 0
    shorter = study.runs(label)
    before = [study.files(run) for run in shorter]
    assert all("clients.rows" in files for files in before)
    longer = lengthened(study, label, 7)
    assert study.train(label, "at-once") == 0
    for after in (4, 6):
        child = killing.context.Process(
            target=train_in_files_and_die, args=(study, label, "runs", after)
        )
        child.start()
        child.join(300)
        assert child.exitcode == -9
    assert study.train(label) == 0
    for run in longer:
        assert study.files(run) == study.files(run, "at-once")
        stretches = study.store().record(run)["execution"]["stretches"]
        assert [stretch["after"] for stretch in stretches] == [0, 3, 5]
    assert [study.files(run) for run in shorter] == before


def test_what_cannot_go_on_begins_with_round_1(
    planned: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    """A seed without the other one of its stack, another backend, a damaged state."""
    training = {**planning.STUDY["training"], "rounds": 2}
    study = planned(seeds=[0, 1], training=training, execution=KEPT)
    shorter = study.runs("fedavg")
    assert study.train("fedavg") == 0

    def begins(rounds: int) -> int:
        runs = lengthened(study, "fedavg", rounds)
        caplog.clear()
        assert study.train("fedavg") == 0
        return first_round(study, runs[0])

    whole = study.bundle("fedavg")
    study.change("fedavg", lambda bundle: bundle["runs"].pop())
    assert begins(3) == 0
    assert "goes on" not in caplog.text
    study.store().remove(study.runs("fedavg")[0])
    study.change("fedavg", lambda bundle: bundle.update(whole))
    study.change("fedavg", lambda bundle: bundle["execution"].update(backend="loop"))
    assert begins(4) == 0
    assert "its backend was stacked" in caplog.text
    for run in study.runs("fedavg"):
        study.store().remove(run)
    study.change("fedavg", lambda bundle: bundle["execution"].update(backend="stacked"))
    path = study.root / "runs" / shorter[1] / "state.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert begins(5) == 0
    assert f"{path}: " in caplog.text
    assert len(run_check.find_problems(study.store(), shorter[1])) == 1
    for run in study.runs("fedavg"):
        study.store().remove(run)
    path.write_bytes(content)
    assert begins(5) == 2


def test_a_plan_says_what_goes_on_what_does_not_and_the_room_of_states(
    planned: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    training = {**planning.STUDY["training"], "rounds": 2}
    entries: dict[str, Any] = {
        "fedavg": None,
        "ditto": None,
        "cosine": {"method": "fedavg", "schedule": "cosine"},
        "patient": {"method": "fedavg", "early_stopping": 1},
        "fedkd": None,
        "pfedgraph": None,
        "forgetful": {"method": "fedprox", "execution": {"keep_state": False}},
    }
    study = planned(methods=entries, seeds=[0, 1], training=training, execution=KEPT)

    def told() -> list[str]:
        capsys.readouterr()
        assert main.main(["plan", "--config", str(study.root / "config")]) == 0
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    lines = told()
    sizes = dict(line.split(" will take about ") for line in lines if " will take " in line)
    assert {*sizes} == {"keep_state: the last states of 4 runs"}
    for label, reason in OBSTACLES.items():
        [line] = [line for line in lines if line.startswith(f"keep_state: {label} keeps no state")]
        assert line.endswith(reason)
    assert not any("goes on" in line or "begins with" in line for line in lines)
    for label in entries:
        assert study.train(label) == 0
    kept = {path.parent.name: path for path in study.root.glob("runs/*/state.safetensors")}
    assert {*kept} == {*study.runs("fedavg"), *study.runs("ditto")}
    room = sum(path.stat().st_size for path in kept.values())
    [number, unit] = next(iter(sizes.values())).split()
    assert unit == "kB" and 0.3 < float(number) * 1000 / room <= 1
    planning.write_study(
        study.root,
        {"methods": entries, "seeds": [0, 1], "training": {**training, "rounds": 5}},
    )
    lines = told()
    for label in entries:
        source = study.runs(label)[0]
        [line] = [line for line in lines if f"round 2 of run {source} and 1 other run" in line]
        if label in ("fedavg", "ditto"):
            assert line.startswith("goes on from ")
        else:
            assert line.startswith("begins with round 1, not after ")
            assert line.endswith(OBSTACLES.get(label, "`execution: {keep_state: true}` keeps it"))
    made = plan.make(study.root / "config")
    told_by_run = continuation.training_lines(made.bundles.values(), study.store())
    going_on = {line.partition(" on ")[0] for line in told_by_run if ": goes on" in line}
    assert going_on == {"FedAvg", "Ditto"}


OBSTACLES = {
    "cosine": "schedule: cosine depends on the number of rounds",
    "patient": "early_stopping looks at every round but the last",
    "fedkd": "fl/methods/fedkd.py reads the number of rounds",
    "pfedgraph": "fl/blocks/model_mixtures.py reads the number of rounds",
}


READERS = {"api/training.py", "engine/simulate.py"}
"""Files of the engine that read the number of rounds: schedules, early stopping, evaluation."""


def test_no_other_code_that_methods_share_reads_the_number_of_rounds() -> None:
    found = {
        path.relative_to(identity.ROOT).as_posix()
        for room in ("api", "engine")
        for path in (identity.ROOT / room).rglob("*.py")
        if ".rounds" in path.read_text()
    }
    assert found == READERS
