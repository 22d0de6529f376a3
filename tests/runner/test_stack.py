"""What each of several runs that are trained together is said to have taken."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from fl.engine.simulate import Round
from fl.engine.state import ClientStates, State
from fl.runner.stack import Stack
from fl.store import checkpoint

PLAIN: Any = SimpleNamespace(
    arrays=SimpleNamespace(device="cpu"),
    begin=lambda: State({}, ClientStates.from_initial({}, {}, 2)),
)
"""Of a simulation what a checkpoint needs."""


def test_runs_of_a_stack_share_its_time_also_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("fl.runner.stack.time.monotonic", lambda: now)
    state = State({}, {})
    rows = pd.DataFrame({"round": [0]})
    runs = ("a", "b")
    stack = Stack(
        dict.fromkeys(runs, PLAIN),
        [*runs],
        dict.fromkeys(runs, state),
        dict.fromkeys(runs, rows),
        "stacked",
        begin_time=now,
    )
    now += 6.0
    diverged = Round(1, state, rows, 0.0, "as asked")
    stack.add({"a": Round(1, state, rows, 0.0, ""), "b": diverged})
    assert list(stack.states) == ["a"] and stack.seconds == 3.0
    stack.save(tmp_path)
    saved = checkpoint.load_latest(tmp_path)
    assert saved is not None
    now += 1000.0  # Between two jobs.
    again = Stack.resume(saved, dict.fromkeys(runs, PLAIN))
    again.begin_time = now
    now += 4.0
    assert (again.members, list(again.states), again.round) == ([*runs], ["a"], 1)
    assert again.seconds == 5.0
