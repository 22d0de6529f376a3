"""The compiled backend: it is the loop to rounding, and is compiled once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import worlds
from torch._dynamo.utils import counters
from worlds import world

from fl.api.method import BuildContext
from fl.api.network import Network
from fl.api.training import Training
from fl.engine import compiled, engine
from fl.engine.batches import schedule
from fl.engine.sample_arrays import Arrays
from fl.engine.simulation import Simulation
from fl.engine.state import PhaseSchedule, RoundSchedule
from fl.methods.fedavg import FedAvg
from fl.models.lstm import LSTM

CPU = torch.device("cpu")
PROGRAMS = Path(__file__).parents[2] / ".cache" / "torchinductor"
compiles = pytest.mark.skipif(
    not compiled.is_available(CPU), reason="torch.compile needs a C++ compiler"
)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many programs have been compiled so far; they are short, which makes that quick.

    They are kept in this clone: in the folder that all processes share, one that was killed while
    it wrote a program left one that computes garbage.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(PROGRAMS))
    monkeypatch.setattr(compiled, "STEPS_PER_PROGRAM", 2)
    torch._dynamo.reset()
    counters.clear()
    return lambda: int(counters["stats"]["unique_graphs"])


@compiles
def test_compiled_is_loop_to_rounding_at_any_learning_rate(programs: Callable[[], int]) -> None:
    """With all that a run may add to a step, in the one program that is compiled."""
    added = {"clip_norm": 0.5, "label_smoothing": 0.25, "class_weights": "balanced"}
    simulation = world("fedavg", "mlp", local_epochs=1, **added)
    method, state, plan = simulation.method, simulation.begin(), simulation.round_schedule(1)
    steps = plan.schedules[0].steps
    assert len(set(steps.tolist())) == 3, "who has fewer steps waits"
    assert (steps % 2).any(), "the last chunk is padded"
    needed = None
    for lr in (0.1, 0.03):
        now = replace(plan, training=replace(plan.training, lr=lr))
        after, losses = engine.run_round(method, state, now, "compiled")
        expected, expected_losses = engine.run_round(method, state, now, "loop")
        assert worlds.distance(worlds.tree(after), worlds.tree(expected)) < 1e-10
        torch.testing.assert_close(losses, expected_losses, rtol=0, atol=1e-10)
        assert worlds.distance(worlds.tree(after), worlds.tree(state)) > 1e-3
        needed = needed or programs()
    assert programs() == needed == 1
    assert not counters["graph_break"]


@compiles
def test_lstm_runs_uncompiled_to_the_same_numbers(programs: Callable[[], int]) -> None:
    context = Network(lambda: LSTM(7, 3, 4, 1).build((5,), 3), torch.float64)
    training = Training(batch_size=4, local_epochs=1, precision="float64")
    method = FedAvg().build(BuildContext(context, training, 3, 2))
    x = np.random.default_rng(0).integers(0, 7, (12, 5))
    batches = schedule([np.arange(4), np.arange(4, 12)], [0, 1], training, 0, 1)
    arrays = Arrays(x, x[:, 0] % 3, None, dtype=torch.float64)
    phase = PhaseSchedule(torch.arange(2), torch.tensor([4, 8]), (batches,))
    plan = RoundSchedule(1, (phase,), arrays, replace(training, lr=0.5))
    state = engine.initial_state(method, context.init(0), torch.ones(2, 3, dtype=torch.int64))
    ends = [engine.run_round(method, state, plan, name)[0] for name in ("compiled", "loop")]
    assert worlds.distance(*(worlds.tree(end) for end in ends)) < 1e-10
    # With two steps over five tokens in it, a program has 427 calls; without, 48 if this test runs
    # alone, and 64 after those of other folders.
    assert counters["stats"]["calls_captured"] < 100


def longest(simulation: Simulation) -> list[int]:
    rounds = range(1, simulation.training.rounds + 1)
    return [int(simulation.round_schedule(number).schedules[0].steps.max()) for number in rounds]


def test_who_takes_part_does_not_matter_to_the_program(
    programs: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds differ in their clients, rates and steps. What is compiled is only traced here."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    simulation = world("fedavg", "mlp", participation=0.5, local_epochs=1, seed=2)
    assert len(set(longest(simulation))) > 1
    found, rows = worlds.run(simulation, "compiled")
    expected, expected_rows = worlds.run(simulation, "loop")
    assert worlds.distance(worlds.tree(found), worlds.tree(expected)) < 1e-10
    assert worlds.rows_agree(rows, expected_rows, 1e-10)
    assert 1 <= programs() <= 2, "with a mask and without"


def test_a_term_that_taps_layers_is_compiled_too(
    programs: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as gradients are traced, where tensors of a stack that are left behind show."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    simulation = world("fedprox", "mlp", rounds=1, terms=[("cosine", {"layers": ["0"], "mu": 0.5})])
    found, expected = (worlds.run(simulation, name)[0] for name in ("compiled", "loop"))
    assert worlds.distance(worlds.tree(found), worlds.tree(expected)) < 1e-10
    assert 1 <= programs() <= 2


def test_without_a_compiler_it_is_not_available(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not compiled.is_available(CPU)
    assert compiled.is_available(torch.device("cuda")), "a GPU needs none"
    for name in ("c++", "g++", "clang++"):
        program = tmp_path / name
        program.touch(mode=0o755)
        assert compiled.is_available(CPU)
        program.unlink()
    monkeypatch.setenv("CXX", str(tmp_path / "mine"))
    assert not compiled.is_available(CPU)
    (tmp_path / "mine").touch(mode=0o755)
    assert compiled.is_available(CPU)


def test_without_a_compiler_a_stack_is_trained_as_it_is_and_said_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    compiled._log_once.cache_clear()
    simulation = world("fedavg")
    with caplog.at_level("INFO", logger="fl.engine.compiled"):
        found, rows = worlds.run(simulation, "compiled")
    expected, expected_rows = worlds.run(simulation, "stacked")
    assert worlds.same(worlds.tree(found), worlds.tree(expected))
    assert worlds.rows_agree(rows, expected_rows, 0.0)
    assert caplog.messages == ["no C++ compiler found on this machine, so steps are not compiled"]
