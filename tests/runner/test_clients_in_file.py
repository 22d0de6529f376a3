"""Runs whose clients are in files, as they do not fit into memory, give the bytes of all others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import killing
import planning
import pytest
import worlds
from planning import Planned

from fl.engine import client_states, simulate
from fl.runner.stack import Stack
from fl.store import checkpoint


def train_in_files_and_die(*arguments: Any) -> None:
    """`planning.train_and_die` of clients in files."""
    client_states.MEMORY_BYTES = 0
    planning.train_and_die(*arguments)


def test_killed_and_resumed_is_undisturbed_to_the_bit(
    planned: Callable[..., Planned], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two seeds in a stack. A kill leaves the files of a process, and the next one removes them."""
    study = planned(methods={"ditto": None}, seeds=[0, 1], keep_weights=True)
    assert study.train("ditto", "whole") == 0
    child = killing.context.Process(
        target=train_in_files_and_die, args=(study, "ditto", "broken", 5)
    )
    child.start()
    child.join(300)
    assert child.exitcode == -9
    [folder] = [
        path[-1] for run in study.runs("ditto") if (path := study.checkpoints(run, "broken"))
    ]
    assert folder.name == "round-000004"
    assert {path.stem for path in folder.glob("*.rows")} == {*study.runs("ditto")}
    left = [*folder.parents[1].glob(".clients*")]
    assert len(left) == 2
    monkeypatch.setattr(client_states, "MEMORY_BYTES", 0)
    with planning.signalled(after=5):
        assert study.train("ditto", "broken") == 75
    assert not any(path.exists() for path in left)
    assert [*folder.parent.glob("round-000005/*.rows")]
    monkeypatch.undo()  # From here on in memory.
    assert study.train("ditto", "broken") == 0
    for run in study.runs("ditto"):
        assert study.files(run, "broken") == study.files(run, "whole")
        assert not study.store("broken").partial(run).exists()


def test_the_next_run_of_a_stack_takes_over_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the run that has ended is gone, with the names that the file had there."""
    monkeypatch.setattr(client_states, "MEMORY_BYTES", 0)
    simulation = worlds.world("ditto", rounds=4)
    stack = Stack.begin({"run": simulation}, {"run": None}, "stacked")
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    stack.states["run"].client_states.file.folder = first
    rounds = simulate.lockstep(stack.simulations, stack.states, 0, "stacked")
    stack.add(next(rounds))
    stack.save(first / "checkpoint")
    checkpoint.files.erase(first)
    for _ in range(2):
        stack.add(next(rounds))
        stack.save(second / "checkpoint")
    saved, again = checkpoint.load_latest(second / "checkpoint"), {"run": simulation}
    assert saved is not None
    resumed = Stack.resume(saved, again)
    assert resumed.states["run"].client_states.file.folder == second
    [straight], [end] = rounds, simulate.lockstep(again, resumed.states, 3, "stacked")
    assert worlds.same(worlds.tree(end["run"].state), worlds.tree(straight["run"].state))
