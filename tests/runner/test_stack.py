"""The recorded time of the runs of a stack, and the times of their checkpoints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from fl.engine.client_states import ClientStates
from fl.engine.simulate import Round
from fl.engine.state import State
from fl.runner.stack import CheckpointTimes, Stack
from fl.store import checkpoint

PLAIN: Any = SimpleNamespace(
    device="cpu",
    begin=lambda: State({}, ClientStates.from_initial({}, {}, 2)),
)
"""The part of a simulation that a checkpoint needs."""


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


@pytest.mark.parametrize(
    ("every", "seconds", "expected"),
    [
        (2, 9.0, [2, 4, 6, 8, 10, 12]),  # The config's number of rounds counts, whatever it costs.
        (None, 0.5, [3, 12]),  # After 2 s, and 10 s after that.
        (None, 0.01, [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        (None, 9.0, [3]),
    ],
)
def test_checkpoints_take_a_twentieth_of_the_time_unless_the_config_has_their_rounds(
    every: int | None, seconds: float, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("fl.runner.stack.time.monotonic", lambda: now)
    times, saved = CheckpointTimes(every, last_time=now), list[int]()
    for round_ in range(1, 13):
        now += 0.8 if round_ < 3 else 1.2  # The first checkpoint, of .1 s, is due after 2 s.
        if times.is_due(round_):
            with times.measure():
                now += seconds
            saved.append(round_)
    assert saved == expected
