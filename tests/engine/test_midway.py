"""A round that is left after any of its steps goes on with the same bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from contract import test_modalities, worlds
from contract.worlds import world

from fl.api import trees
from fl.engine import compiled, engine, simulate
from fl.engine.midway import Midway, place
from fl.engine.simulate import Round, Simulation
from fl.store import tree_file

Runs = Mapping[int, Simulation]


class LeftError(BaseException):
    """Leaves a round."""


@dataclass
class Leaver:
    """Leaves a round whenever it may, with what it keeps in a file.

    Attributes:
        places: Where it left, in words.
        often: Leaves at every so many steps.
    """

    path: Path
    often: int = 1
    places: list[str] = field(default_factory=list)
    steps: int = 0

    def due(self) -> bool:
        self.steps += 1
        return self.steps % self.often == 0

    def keep(self, tree: dict[str, Any]) -> None:
        self.places.append(place(tree))
        assert len(self.places) < 1000, "it goes on"
        self.path.write_bytes(tree_file.packed(tree, repeats=True))
        raise LeftError

    def midway(self) -> Midway:
        begun = tree_file.unpacked(self.path, "cpu", repeats=True) if self.path.exists() else {}
        return Midway(self.due, self.keep, begun)


def undisturbed(runs: Runs, backend: str) -> list[dict[int, Round]]:
    return list(
        simulate.lockstep(runs, {seed: run.begin() for seed, run in runs.items()}, 0, backend)
    )


def left(runs: Runs, backend: str, leaver: Leaver) -> list[dict[int, Round]]:
    """All rounds, each of which is left whenever it may be."""
    states = {seed: run.begin() for seed, run in runs.items()}
    found: list[dict[int, Round]] = []
    total = next(iter(runs.values())).training.rounds
    while len(found) < total:
        try:
            done = next(simulate.lockstep(runs, states, len(found), backend, leaver.midway()))
        except LeftError:
            continue
        leaver.path.unlink(missing_ok=True)
        states = {seed: one.state for seed, one in done.items()}
        found.append(done)
    return found


def check(runs: Runs, backend: str, path: Path, often: int = 1) -> list[str]:
    """Leaving and going on changes no bit of states and rows.

    Returns:
        Where it left.
    """
    leaver = Leaver(path / "midway", often)
    found = left(runs, backend, leaver)
    for ours, theirs in zip(found, undisturbed(runs, backend), strict=True):
        for seed, one in theirs.items():
            assert worlds.same(worlds.tree(ours[seed].state), worlds.tree(one.state))
            assert strides(ours[seed]) == strides(one)
            assert ours[seed].rows.equals(one.rows)
    return leaver.places


def strides(done: Round) -> list[tuple[int, ...]]:
    return [leaf.stride() for leaf in trees.leaves(worlds.tree(done.state))]


TERM = [("mk-mmd", {"layers": ["2"], "update": "periodic", "first": 1, "every": 2, "batches": 1})]
ONCE: dict[str, Any] = {"rounds": 1}
CASES: dict[str, Callable[[], Simulation]] = {
    "momentum and batch normalisation": lambda: world("fedavg", "cnn", **ONCE),
    "controls": lambda: world("scaffold", **ONCE),
    "momentum that is kept": lambda: world("ditto", local_epochs=1),
    "a server with a state": lambda: world("feddyn", **ONCE),
    "a sweep in a phase before": lambda: world("fedfm", local_epochs=1),
    "a sweep between passes": lambda: world("l2p", local_epochs=1, **ONCE),
    "a sweep after training": lambda: world("fedproto", local_epochs=1, **ONCE),
    "phases for everyone": lambda: world("fedlgd", local_epochs=1, **ONCE),
    "refreshes": lambda: world("fedavg", terms=TERM, local_epochs=1, **ONCE),
    "modalities": lambda: test_modalities.world("fedavg", **ONCE),
    "a server for each modality": lambda: test_modalities.world("scaffold", **ONCE),
}


@pytest.mark.parametrize("case", CASES)
def test_a_round_left_after_every_step_ends_with_the_same_bits(case: str, tmp_path: Path) -> None:
    places = check({5: CASES[case]()}, "stacked", tmp_path)
    assert "step 1" in " ".join(places)
    if "sweep" in case or "phases" in case:
        assert "after pass" in " ".join(places)
    if case == "modalities":
        second = [f"modality 2, step {n}" for n in (1, 2, 3)]
        assert places == ["step 1", *second, "modality 3, step 1"]


@pytest.mark.parametrize("backend", ["loop", "debug"])
def test_a_client_in_the_middle_goes_on_alone(backend: str, tmp_path: Path) -> None:
    simulation = world("fedprox", terms=TERM, local_epochs=1, **ONCE)
    places = check({5: simulation}, backend, tmp_path)
    steps = simulation.plan(1).schedules[0].steps.tolist()
    assert places == [
        (f"client {row}, " if row > 1 else "") + f"step {step + 1}"
        for row, own in enumerate(steps, start=1)
        for step in range(own)
    ]


@pytest.mark.parametrize(
    "clients", [{}, {"sizes": (24, 4, 4, 4), "participation": 1.0}], ids=["alike", "turns"]
)
def test_programs_go_on_after_the_steps_that_they_are_made_of(
    clients: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where three small clients take turns beside a large one."""
    monkeypatch.setattr(torch, "compile", lambda program, **_: program)
    monkeypatch.setattr(compiled, "available", lambda _: True)
    monkeypatch.setattr(compiled, "CHUNK", 2)
    simulation = world("scaffold", **clients, **ONCE)
    assert check({5: simulation}, "compiled", tmp_path) == ["step 2", "step 4", "step 6"]


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_groups_that_are_done_are_not_done_again(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The uploads of FedAvg are averaged group by group, those of SCAFFOLD are not."""
    monkeypatch.setattr(engine, "ROOM", 1)
    places = check({5: world(method, local_epochs=1, **ONCE)}, "stacked", tmp_path)
    assert [place for place in places if place.endswith("step 1")] == [
        "step 1",
        "group 2, step 1",
        "group 3, step 1",
    ]


def test_seeds_of_one_stack_are_left_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {seed: world("fedfm", seed=seed, local_epochs=1, rounds=2) for seed in (5, 6, 7)}
    monkeypatch.setattr(engine, "ROOM", 20_000)
    places = check(runs, "stacked", tmp_path, often=2)
    assert any("group 2, step" in place for place in places), "a group has clients of several runs"


def test_nothing_is_kept_where_nobody_asks(tmp_path: Path) -> None:
    leaver = Leaver(tmp_path / "midway", often=10**9)
    left({5: world("ditto")}, "stacked", leaver)
    assert leaver.places == []
    assert leaver.steps == 10, "asked once after every step of a stack"
