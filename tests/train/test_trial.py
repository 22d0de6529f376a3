"""The choice of a backend: tried where it is worth it, known after that, the same for all jobs."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import planning
import pytest
import torch
from contract import worlds
from contract.test_modalities import world as two_kinds
from contract.worlds import world
from planning import Planned
from torch import Tensor
from torch._dynamo.utils import counters

from fl.api import trees
from fl.engine import compiled, engine
from fl.engine.simulate import Simulation
from fl.plan import served
from fl.train import candidates as tried
from fl.train import compiling, programs, trial
from fl.train.candidates import Candidates
from fl.train.learnt import Learnt, Measured, Subject

Plan = Callable[..., Planned]
CPU = torch.device("cpu")
MANY = {"rounds": 1000, "evaluate_every": 1000}


def candidates(simulation: Simulation, seeds: int = 1) -> Candidates:
    runs = [replace(simulation, seed=seed) for seed in range(seeds)]
    return Candidates.of(runs, [run.begin() for run in runs])


def subject(name: str = "fedavg", **fits: str) -> Subject:
    place = {"model": "mlp", "machine": "this"}
    return Subject([{"name": name}], place, {"core": "c", "model": "m", "torch": "t", **fits})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int, int]]]:
    """Time that only steps take: 1 s for a client's in the loop, 2 s for all in a stack, 0.1 s in a
    compiled one. Yields the backend, the clients and the steps of each try.
    """
    tries: list[tuple[str, int, int]] = []
    now = 0.0

    def run_rounds(methods: Any, states: Any, plans: Any, backend: str) -> list[Any]:
        nonlocal now
        clients = sum(len(plan.clients) for plan in plans)
        steps = max(int(plan.schedules[0].steps.max()) for plan in plans)
        tries.append((backend, clients, steps))
        if backend == "loop":
            now += sum(int(plan.schedules[0].steps.sum()) for plan in plans)
        else:
            now += steps * {"stacked": 2.0, "compiled": 0.1}[backend]
        return [(state, torch.zeros(1)) for state in states]

    monkeypatch.setattr(tried.engine, "run_rounds", run_rounds)
    monkeypatch.setattr(trial.time, "perf_counter", lambda: now)
    yield tries


# What is tried


@pytest.mark.parametrize("model", worlds.MODELS)
def test_a_trial_names_a_backend_and_leaves_no_trace(model: str, tmp_path: Path) -> None:
    simulation = world("local", model, rounds=100)
    state, plan = simulation.begin(), simulation.plan(1)
    before = trees.apply(Tensor.clone, worlds.tree(state))
    chosen = trial.choose(Candidates.of([simulation], [state]), Learnt(None, subject()))
    assert set(chosen.seconds) == {"loop", "stacked"}
    assert chosen.backend == min(chosen.seconds, key=chosen.seconds.__getitem__)
    assert all(0 < s < 10 for s in chosen.seconds.values())
    assert worlds.same(worlds.tree(state), before)
    assert plan.schedules[0].steps.max() > 3, "the plan is not cut short itself"
    after = [
        engine.run_round(one.method, one.begin(), one.plan(1), "loop")[0]
        for one in (simulation, world("local", model, rounds=100))
    ]
    assert worlds.same(*map(worlds.tree, after))


@pytest.mark.parametrize("method", ["fedamp", "scaffold", "pfedhn", "fedproto", "ditto", "fedrep"])
def test_some_clients_are_enough_to_time_the_loop(method: str) -> None:
    runs = candidates(world(method, rounds=100, participation=1.0), seeds=2)
    few = runs.few()
    assert (runs.participants, few.participants) == (8, 2)
    assert few.seconds("loop", 2) > 0 and runs.seconds("stacked", 2) > 0


def test_where_clients_differ_in_modality_that_of_most_is_timed() -> None:
    runs = candidates(two_kinds("fedavg", classifier="own", participation=1.0))
    assert runs.participants == 3
    assert runs.shapes["sample"] == [4], "texts of four tokens"
    assert runs.few().seconds("loop", 2) > 0 and runs.seconds("stacked", 2) > 0


def test_those_with_most_steps_are_timed_and_nobody_else_is_copied() -> None:
    simulation = world("fedavg", participation=0.5, rounds=100)
    runs = candidates(simulation)
    assert runs.participants == 2
    assert len(runs.states[0].clients["id"]) == 2
    assert (
        runs.states[0].clients["id"].tolist()
        == replace(simulation, seed=0).plan(1).clients.tolist()
    )
    everyone = candidates(world("fedavg", participation=1.0))
    steps = everyone.plans[0].schedules[0].steps
    assert sorted(everyone.few().plans[0].schedules[0].steps) == sorted(steps)[-2:]


# What it costs


@pytest.mark.parametrize("rounds", [1, 20, 40, 100, 1000, 100_000])
def test_a_trial_takes_at_most_its_share_of_the_work_ahead(
    rounds: int, clock: list[tuple[str, int, int]]
) -> None:
    runs = candidates(world("fedavg", rounds=rounds, participation=1.0))
    found = trial.measure(runs)
    first = [one for one in clock if one[2] > 1]  # After a first step, which the run needs too.
    spent = sum(steps * {"loop": clients, "stacked": 2}[name] for name, clients, steps in first)
    work = min(found.seconds.values(), default=2.0) * runs.steps
    assert spent <= trial.SHARE * work
    assert bool(clock) == (runs.steps >= trial.LEAST)
    if runs.steps > 10 * trial.LEAST:
        steps = runs.plans[0].schedules[0].steps
        assert sorted(steps) == [2, 4, 4, 6], "not alike"
        assert found.seconds == {"stacked": 2.0, "loop": pytest.approx(steps.sum() / 6)}
        assert len(first) == 2 * trial.TURNS


def test_a_loop_that_takes_too_long_is_not_tried_again(
    clock: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "LEAST", 1)
    monkeypatch.setattr(trial, "SHARE", 10.0 / (2 * 300))  # 10 s of work
    runs = candidates(world("fedavg", rounds=1))
    runs = replace(runs, rounds=300 // runs.steps)
    found = trial.measure(runs)
    assert [name for name, _, steps in clock if steps > 1] == ["stacked", "loop"]
    assert {*found.seconds} == {"stacked", "loop"}


def test_little_work_takes_what_is_usual_here(tmp_path: Path) -> None:
    runs = candidates(world("fedavg", rounds=1))
    mine = Learnt(tmp_path, subject("fedavg"))
    chosen = trial.choose(runs, mine)
    assert (chosen.backend, chosen.seconds) == ("stacked", {})
    alone = replace(runs, **{key: getattr(runs.few(), key) for key in ("states", "plans")})
    alone = replace(alone, plans=[alone.plans[0].take([0])])
    assert trial.choose(alone, mine).backend == "loop", "a stack of one is no gain"
    Learnt(tmp_path, subject("ditto")).write(Measured({"loop": 1.0, "stacked": 2.0}))
    chosen = trial.choose(runs, mine)
    assert (chosen.backend, chosen.why) == ("loop", "as for other methods here")
    other = replace(subject("ditto"), place={"model": "cnn", "machine": "this"})
    assert trial.choose(runs, Learnt(tmp_path, other)).backend == "stacked"


# What is compiled


@pytest.mark.parametrize(("ahead", "share"), [(1, 1.0), (10**9, 1.0), (1000, 10**6)])
def test_compiling_is_tried_only_where_the_work_of_the_study_is_worth_it(
    ahead: int, share: float, clock: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "available", lambda device: True)
    monkeypatch.setattr(compiling, "PAYS", 1e6)
    runs = candidates(world("fedavg", rounds=100))
    chosen = trial.choose(replace(runs, rounds=ahead), Learnt(None, subject()), served=share)
    worth = ahead * share > 1000
    assert any(name == "compiled" for name, *_ in clock) == worth
    assert chosen.backend == ("compiled" if worth else "stacked")


@pytest.mark.parametrize(("model", "device"), [("mlp", "cpu"), ("cnn", "cpu"), ("cnn", "cuda")])
def test_on_a_cpu_no_program_of_convolutions_is_tried(
    model: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "available", lambda device: True)
    runs = candidates(world("fedavg", model))
    arrays = SimpleNamespace(device=torch.device(device))
    plans: Any = [replace(plan, arrays=arrays) for plan in runs.plans]
    assert replace(runs, plans=plans).compilable == ((model, device) != ("cnn", "cpu"))


def test_a_program_that_takes_longer_to_compile_than_it_saves_is_not_compiled(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiled, "available", lambda device: True)
    monkeypatch.setattr(compiling, "PAYS", 0.0)
    plain = candidates(world("fedavg"))
    twice = candidates(world("perfedavg"))
    assert 0 < plain.calls < twice.calls, "its gradient is of two steps"
    for runs in (plain, twice):
        kept = Learnt(tmp_path / str(runs.calls), subject())
        known = compiling.foreseen(runs, Measured({"loop": 2.0, "stacked": 1.0}), kept, 1.0)
        enough = compiling.expected(runs) / compiling.MOST
        assert compiling.worth(runs, known, 1.01 * enough)
        assert not compiling.worth(runs, known, 0.99 * enough)
        assert kept.read() == known, "the next job need not count"
    monkeypatch.setattr(compiling, "expected", lambda runs: 1 / 0)
    assert compiling.foreseen(runs, known, kept, 1.0) == known


def test_a_trial_compiles_all_that_a_round_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compiled is only traced here."""
    monkeypatch.setattr(compiled, "CHUNK", 2)
    monkeypatch.setattr(compiled, "available", lambda device: True)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr(compiling, "PAYS", 0.0)
    monkeypatch.setattr(compiling, "expected", lambda runs: 0.0)
    torch._dynamo.reset()
    counters.clear()
    simulation = world("fedavg", rounds=100, participation=1.0)
    state, kept = simulation.begin(), Learnt(tmp_path, subject())
    chosen = trial.choose(Candidates.of([simulation], [state]), kept)
    made = counters["stats"]["unique_graphs"]
    assert {*chosen.seconds} == {"loop", "stacked", "compiled"} and made > 0
    engine.run_round(simulation.method, state, simulation.plan(1), "compiled")
    assert counters["stats"]["unique_graphs"] == made
    known = kept.read()
    assert known is not None and known.seconds == chosen.seconds and known.compiling > 0


def test_what_is_known_to_be_fastest_compiled_is_compiled_before_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(programs.VARIABLE, str(tmp_path / "compiled"))
    made = []
    monkeypatch.setattr(compiling, "_compile", lambda runs: made.append(1) or (1.0, 0.1))
    runs, kept = candidates(world("fedavg", rounds=100)), Learnt(tmp_path, subject())
    seconds = {"loop": 3.0, "stacked": 2.0, "compiled": 0.1}
    kept.write(Measured(seconds, compiling=1.0, turns=trial.TURNS))
    monkeypatch.setattr(compiled, "available", lambda device: False)
    assert trial.choose(runs, kept, "p").backend == "stacked", "no compiler here"
    monkeypatch.setattr(compiled, "available", lambda device: True)
    assert [trial.choose(runs, kept, "p").backend for _ in range(3)] == ["compiled"] * 3
    assert made == [1], "the others load it"
    assert trial.choose(runs, kept, "q").backend == "compiled" and made == [1, 1]


@pytest.mark.parametrize("error", [RuntimeError("no such operation"), OSError("disk full")])
def test_what_cannot_be_compiled_is_not_compiled_by_the_next_job(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def compile_(runs: Candidates) -> tuple[float, float]:
        tried.append(1)
        raise error

    monkeypatch.setattr(compiled, "available", lambda device: True)
    monkeypatch.setattr(compiling, "PAYS", 0.0)
    monkeypatch.setattr(compiling, "expected", lambda runs: 0.0)
    monkeypatch.setattr(compiling, "_compile", compile_)
    runs, kept = candidates(world("fedavg", rounds=100)), Learnt(tmp_path, subject())
    names = [trial.choose(runs, kept).backend for _ in range(3)]
    assert set(names) <= {"loop", "stacked"}
    assert len(tried) == (1 if isinstance(error, RuntimeError) else 3)


def test_time_to_compile_counts() -> None:
    known = Measured({"loop": 3.0, "stacked": 2.0, "compiled": 1.0}, compiling=100.0)
    assert [known.best(steps) for steps in (10, 99, 101)] == ["stacked", "stacked", "compiled"]
    assert known.uncompiled().best(10**9) == "stacked"


# What is kept


def test_the_second_job_makes_no_trial_and_another_model_does(
    planned: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    measure = trial.measure

    def counting(runs: Candidates, known: Measured) -> Measured:
        tried.append(1)
        return measure(runs, known)

    monkeypatch.setattr(trial, "measure", counting)
    monkeypatch.setattr(trial, "LEAST", 1)
    monkeypatch.setattr(trial, "SHARE", 10**6)
    training = {**planning.STUDY["training"], "rounds": 2}
    study = planned(execution={"backend": "auto"}, training=training)
    executions = []
    for store in ("one", "two"):
        assert study.train("fedavg", store) == 0
        executions.append(study.store(store).record(study.runs("fedavg")[0])["execution"])
    assert tried == [1]
    assert [set(one["trial"]) for one in executions] == [{"loop", "stacked"}, set()]
    assert executions[0]["backend"] == executions[1]["backend"]

    def rate(bundle: dict[str, Any]) -> None:
        bundle["runs"][0]["spec"]["training"].update(lr=0.5, rounds=3)

    study.change("fedavg", rate)
    assert study.train("fedavg", "rate") == 0
    assert tried == [1], "a learning rate costs nothing"

    def wider(bundle: dict[str, Any]) -> None:
        bundle["runs"][0]["spec"]["model"]["hidden"] = [6]

    study.change("fedavg", wider)
    assert study.train("fedavg", "wider") == 0
    assert tried == [1, 1]
    assert len(list((study.root / "results" / "trials").iterdir())) == 2


def test_what_one_moment_said_is_asked_again_by_later_jobs(
    tmp_path: Path, clock: list[tuple[str, int, int]]
) -> None:
    """As long as it takes its share of the work, and no more often than one job would."""
    runs, kept = candidates(world("fedavg", rounds=1000)), Learnt(tmp_path, subject())
    kept.write(Measured({"loop": 2.4, "stacked": 20.0, "compiled": 9.0}, compiling=5.0, turns=1))
    little = replace(runs, rounds=trial.LEAST // runs.steps * runs.rounds)
    assert trial.choose(little, kept).why and not [one for one in clock if one[2] > 1]
    chosen = trial.choose(runs, kept)
    assert (chosen.backend, chosen.why) == ("stacked", "")
    first = [name for name, _, steps in clock if steps > 1]
    assert first == ["stacked", "loop"] * (trial.TURNS - 1)
    known = kept.read()
    assert known is not None and known.turns == trial.TURNS and known.compiling == 5.0
    assert known.seconds == {"loop": 2.4, "stacked": 2.0, "compiled": 9.0}
    clock.clear()
    assert trial.choose(runs, kept).why == "known from an earlier job" and not clock


KNOWN = Measured({"loop": 1.0, "stacked": 2.0})


@pytest.mark.parametrize(
    "damage",
    [
        *("", "[]", "{", '{"seconds": 1}', "\0" * 100, "9" * 5000, "[" * 10**5, "x" * 10**6),
        *("seconds", "loop", "negative", "text", "nan", "more", "refused", "folder"),
    ],
)
def test_a_damaged_record_is_as_none_and_replaced(damage: str, tmp_path: Path) -> None:
    kept = Learnt(tmp_path, subject())
    kept.write(KNOWN)
    [path] = (tmp_path / "trials").iterdir()
    found = json.loads(path.read_text())
    edits: dict[str, Callable[[], Any]] = {
        "seconds": lambda: found.pop("seconds"),
        "loop": lambda: found["seconds"].pop("loop"),
        "negative": lambda: found["seconds"].update(loop=-1.0),
        "text": lambda: found["seconds"].update(loop="1"),
        "nan": lambda: found["seconds"].update(loop=float("nan")),
        "more": lambda: found["seconds"].update(other=1.0),
        "refused": lambda: found.update(refused=None),
    }
    if damage in edits:
        edits[damage]()
        path.write_text(json.dumps(found))
    elif damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_text(damage)
    assert kept.read() is None
    assert Learnt(tmp_path, subject("ditto")).usual() is None
    kept.write(KNOWN)
    assert kept.read() == (None if damage == "folder" else KNOWN)


@pytest.mark.parametrize("changed", ["core", "method", "model", "torch"])
def test_what_no_longer_fits_is_forgotten(changed: str, tmp_path: Path) -> None:
    Learnt(tmp_path, subject()).write(KNOWN)
    now = Learnt(tmp_path, subject(**{changed: "new"}))
    assert now.read() is None
    now.write(Measured({"loop": 2.0, "stacked": 1.0}))
    assert len(list((tmp_path / "trials").iterdir())) == 1, "the old file is replaced"
    assert Learnt(tmp_path, subject()).read() is None


def test_a_folder_that_takes_no_files_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "trials").write_text("")
    kept = Learnt(tmp_path, subject())
    kept.write(KNOWN)
    assert kept.read() is None and kept.usual() is None


def test_what_costs_nothing_is_not_asked() -> None:
    spec = {
        **{"method": {"name": "ditto", "lam": 0.1, "steps": 2}, "model": {"name": "mlp"}},
        **{"terms": [], "training": worlds.world("fedavg").training.__dict__},
    }
    of = Subject.of(spec, {"core": "c", "dataset": "d"}, {"clients": 3}, CPU, 1)
    cheap = {**spec, "method": {**spec["method"], "lam": 0.7}}
    cheap["training"] = {**spec["training"], "lr": 0.9, "rounds": 7}
    assert Subject.of(cheap, {"core": "c", "dataset": "e"}, {"clients": 3}, CPU, 1) == of
    dear = {**spec, "method": {**spec["method"], "steps": 3}}
    for other in (
        Subject.of(dear, {"core": "c"}, {"clients": 3}, CPU, 1),
        Subject.of(spec, {"core": "c"}, {"clients": 4}, CPU, 1),
        Subject.of(spec, {"core": "c"}, {"clients": 3}, CPU, 2),
        Subject.of(spec, {"core": "new"}, {"clients": 3}, CPU, 1),
    ):
        assert (other.name, other.fits) != (of.name, of.fits)


def write_many(folder: Path, seconds: float) -> None:
    for _ in range(100):
        Learnt(folder, subject()).write(Measured({"loop": seconds, "stacked": seconds}))


def test_two_jobs_at_once_do_no_harm(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    jobs = [context.Process(target=write_many, args=(tmp_path, float(i))) for i in (1, 2)]
    for job in jobs:
        job.start()
    seen = set()
    while any(job.is_alive() for job in jobs):
        known = Learnt(tmp_path, subject()).read()
        if known:
            seen.add((known.seconds["loop"], known.seconds["stacked"]))
    assert [job.exitcode for job in jobs] == [0, 0]
    assert seen and all(loop == stacked for loop, stacked in seen)
    assert [path.suffix for path in (tmp_path / "trials").iterdir()] == [".json"]


# The work of the study


def test_a_program_serves_all_rates_and_divisions_but_no_other_method(tmp_path: Path) -> None:
    from fl.plan import plan

    divided = [
        {"dirichlet": {"clients": 4, "alpha": alpha, "min_samples": 5}} for alpha in (0.5, 1.0)
    ]
    changes = {
        "partitions": [*divided, {"dirichlet": {"clients": 3, "alpha": 1.0, "min_samples": 5}}],
        "methods": {"fedavg": {"lr": [0.1, 0.2]}, "fedprox": {"mu": [0.1, 0.2]}},
    }
    folder = planning.write_config(tmp_path, changes)
    found, _ = plan.written(folder)
    told = {name: served.read(tmp_path / "results", name) for name in found.bundles}
    by: dict[tuple[str, int], set[Any]] = {}
    for name, bundle in found.bundles.items():
        spec = bundle["runs"][0]["spec"]
        by.setdefault((spec["method"]["name"], spec["partition"]["clients"]), set()).add(told[name])
    assert len(by["fedavg", 4]) == 1 and {share for _, share in by["fedavg", 4]} == {4.0}
    assert {share for _, share in by["fedavg", 3]} == {2.0}
    assert len(by["fedprox", 4]) == 2 and {share for _, share in by["fedprox", 4]} == {2.0}
    assert {share for _, share in by["fedprox", 3]} == {1.0}
    assert len({program for of in by.values() for program, _ in of}) == 6


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"b": 1}', '{"b": {"program": 1}}'])
def test_a_plan_that_does_not_say_serves_itself_alone(content: str, tmp_path: Path) -> None:
    assert served.read(tmp_path, "b") == ("b", 1.0)
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / served.FILE).write_text(content)
    assert served.read(tmp_path, "b") == ("b", 1.0)
