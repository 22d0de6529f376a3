"""What runs on a card: the numbers are the CPU's, and no step waits for it.

The card is a GPU where there is one, and else a pretended one (`pretend_card`).

A round waits as often as it copies something to the card or reads something back: batches and trees
at the beginning of a pass, losses and trees at its end, and what a server decides. A step that does
so keeps the card idle while the host prepares the next one.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import alteration_worlds
import mask_worlds
import modal_worlds
import numpy as np
import pandas as pd
import pretend_card
import pytest
import term_worlds
import torch
import worlds
from arriving import arriving
from short import VARIANTS
from torch import Tensor
from worlds import world

from fl.analyses.features import Features
from fl.analyses.inversion import Inversion
from fl.analyses.membership import Membership
from fl.api import trees
from fl.base import registry
from fl.engine import backends, batches, engine, loader, simulate
from fl.engine.assembly import sibling
from fl.engine.run_setup import MethodComponents
from fl.engine.sample_arrays import Arrays
from fl.engine.simulation import Simulation
from fl.engine.state import PhaseSchedule, State
from fl.participation.selections.divfl import DivFL
from fl.participation.selections.power_of_choice import PowerOfChoice
from fl.participation.servers.asyncfeded import AsyncFedED
from fl.participation.servers.ca2fl import CA2FL
from fl.participation.servers.fedasync import FedAsync
from fl.participation.servers.fedbuff import FedBuff
from fl.runner import costs
from fl.runner.stack import Stack
from fl.store import checkpoint

METHODS = [*registry.names("method"), *VARIANTS]
BACKENDS = ("loop", "stacked")
SHORT: dict[str, Any] = {"rounds": 2, "local_epochs": 1, "sizes": worlds.SIZES[:3]}
SHORTER: dict[str, Any] = {"rounds": 1, "local_epochs": 1, "sizes": (17, 9)}
MOST = 4
"""How often a line of the library may wait outside of passes, in two rounds."""

LIBRARY = re.compile("at fl/(methods|blocks|terms)/")

DECIDED = "fl/blocks/kernel_weights.py"
"""A quadratic program of as many steps as it takes, each of which asks whether it was the last one:
the only thing inside a step for which the host waits (the term mk-mmd, where it adapts).
"""

Make = Callable[[str], Simulation]
"""A simulation on the device of that name."""

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else pretend_card.NAME
ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def counting() -> Iterator[Counter[str]]:
    """Inside, a counter of what the host waits for, by the line that asks for it."""
    if not GPU:
        with worlds.CARD.counting() as waits:
            yield waits
        return
    waits = Counter[str]()
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode(before)
            for one in told:
                if "synchronizing CUDA" in str(one.message):
                    file = one.filename.removeprefix(f"{ROOT}/")
                    waits[f"a number at {file}:{one.lineno}"] += 1


@dataclass(frozen=True)
class Waits:
    """What is waited for: in rounds as a whole, and in the passes of these."""

    rounds: Counter[str] = field(default_factory=Counter)
    passes: Counter[str] = field(default_factory=Counter)

    def clear(self) -> None:
        self.rounds.clear()
        self.passes.clear()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """What is waited for from now on. Sweeps take steps of eight samples, and reference models are
    asked in every step.
    """
    seen = Waits()

    def watched(function: Callable[..., Any], into: Counter[str]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            with counting() as its:
                done = function(*given)
            into.update(its)
            return done

        return call

    monkeypatch.setattr(batches, "SWEEP_BATCH_SIZE", 8)
    monkeypatch.setattr(loader, "MIN_USES_PER_SAMPLE", 10**6)
    rounds = watched(engine.run_rounds, seen.rounds)
    monkeypatch.setattr(engine, "run_rounds", rounds)
    monkeypatch.setattr(Simulation, "run_rounds", staticmethod(rounds))
    monkeypatch.setattr(engine, "run_sweep", watched(engine.run_sweep, seen.passes))
    for name in BACKENDS:
        train = watched(backends.BACKENDS[name], seen.passes)
        monkeypatch.setitem(backends.BACKENDS, name, train)
    return seen


def first_steps(phase: PhaseSchedule | None) -> PhaseSchedule | None:
    """The schedule of a phase with the first step of each of its passes."""
    if phase is None:
        return None
    few = (
        s and replace(s, index=s.index[:, :1], weight=s.weight[:, :1], steps=s.steps.clip(max=1))
        for s in phase.schedules
    )
    return replace(phase, schedules=tuple(few))


def one_step_each(simulation: Simulation, backend: str) -> None:
    """All rounds, of one step in each pass."""
    state = simulation.begin()
    for number in range(1, simulation.training.rounds + 1):
        plan = simulation.round_schedule(number)
        plan = replace(plan, phases=tuple(map(first_steps, plan.phases)))
        state, _ = engine.run_round(simulation.method, state, plan, backend)


def equal(make: Make, backend: str, expected: tuple[State, pd.DataFrame] | None = None) -> None:
    """A run on the card is the CPU's, which is ``expected`` or computed on the same backend."""
    state, rows = expected or worlds.run(make("cpu"), backend)
    on_card, card_rows = worlds.run(make(DEVICE), backend)
    assert worlds.distance(trees.to(worlds.tree(on_card), "cpu"), worlds.tree(state)) < 1e-10
    assert worlds.rows_agree(card_rows, rows, 1e-10)


LOOPED = ("fedprox", "scaffold", "fedfm", "ditto", "fedrep", "fedl2p", "fedas")
"""Methods that are tried in the loop as well, with terms, personal parameters and sweeps.

In a stack, a step that reads a number back fails or is counted, and tensors of two devices meet as
in the loop. What is different in the loop is the engine's, which is the same for all methods.
"""


def equal_and_never_waiting(make: Make, waits: Waits, backend: str = "stacked") -> None:
    """A pass of several steps waits as often as one of a single step does."""
    # On the CPU the backends agree, which other tests of the contract hold.
    expected = worlds.run(make("cpu"), "stacked")
    waits.clear()
    equal(make, backend, expected)
    whole, passes = Counter(waits.rounds), Counter(waits.passes)
    waits.clear()
    one_step_each(make(DEVICE), backend)
    more = {line: n for line, n in (passes - waits.passes).items() if DECIDED not in line}
    assert not more, "steps wait for the card"
    often = {line: n for line, n in (whole - passes).items() if n > MOST and LIBRARY.search(line)}
    assert not often, "a round waits for the card more than twice"


@pytest.mark.parametrize(
    ("method", "backend"),
    [*((method, "stacked") for method in METHODS), *((method, "loop") for method in LOOPED)],
)
def test_methods_are_the_cpus_and_wait_at_the_ends_of_passes(
    method: str, backend: str, waits: Waits
) -> None:
    equal_and_never_waiting(lambda device: world(method, device=device, **SHORT), waits, backend)


@pytest.mark.parametrize("case", range(len(term_worlds.CASES)))
def test_terms_are_the_cpus_and_wait_at_the_ends_of_passes(case: int, waits: Waits) -> None:
    term, values = term_worlds.CASES[case]
    equal_and_never_waiting(
        lambda device: term_worlds.with_term(
            term, "fedprox", "cnn", values, device=device, **SHORTER
        ),
        waits,
    )


@pytest.mark.parametrize("name", alteration_worlds.NAMES)
def test_alterations_are_the_cpus_and_wait_at_the_ends_of_passes(name: str, waits: Waits) -> None:
    equal_and_never_waiting(
        lambda device: alteration_worlds.altered(name, device=device, **SHORTER), waits
    )


MADE = {"masks": mask_worlds.world, "modalities": modal_worlds.world}


@pytest.mark.parametrize(
    ("which", "method"),
    [("masks", "fedharmo"), ("modalities", "fedsac"), ("modalities", "pfedgraph")],
)
def test_masks_and_modalities_are_the_cpus(which: str, method: str) -> None:
    equal(lambda device: MADE[which](method, device=device), "stacked")


@pytest.mark.parametrize("server", [FedBuff(2, 3), FedAsync(3), CA2FL(2, 3), AsyncFedED(3)])
def test_asynchronous_servers_are_the_cpus(server: Any) -> None:
    equal(lambda device: arriving("ditto", server, "cnn", device=device, rounds=4), "stacked")


@pytest.mark.parametrize("selection", [PowerOfChoice(), DivFL(), DivFL("last")])
def test_selections_are_the_cpus(selection: Any) -> None:
    def make(device: str) -> Any:
        components = MethodComponents(worlds.entry("ditto").target(), selection=(selection,))
        made = world("ditto", "cnn", device=device, rounds=3, participation=0.5)
        return sibling(made, components, worlds.SEED)

    equal(make, "stacked")


def test_seeds_in_one_stack_are_the_cpus() -> None:
    def ends(device: str) -> list[simulate.Round]:
        runs = {seed: world("fedfm", "cnn", seed=seed, device=device, **SHORT) for seed in (5, 6)}
        begun = {seed: run.begin() for seed, run in runs.items()}
        [*_, last] = simulate.lockstep(runs, begun, 0, "stacked")
        return list(last.values())

    for on_card, expected in zip(ends(DEVICE), ends("cpu"), strict=True):
        state = trees.to(worlds.tree(on_card.state), "cpu")
        assert worlds.distance(state, worlds.tree(expected.state)) < 1e-10
        assert worlds.rows_agree(on_card.rows, expected.rows, 1e-10)


ARRIVING = "over ca2fl"


@pytest.mark.parametrize("method", ["scaffold", "fedsac", "fedfm", ARRIVING])
def test_a_run_goes_on_from_its_checkpoint_and_costs_what_it_does(
    method: str, tmp_path: Path
) -> None:
    """What is stored is stored from the card and read onto it."""

    def make(device: str) -> dict[str, Simulation]:
        if method == ARRIVING:
            return {"run": arriving("fedavg", CA2FL(2, 3), device=device)}
        return {"run": world(method, device=device, **SHORT)}

    stack = Stack.begin(make(DEVICE), {"run": None}, "stacked")
    rounds = simulate.lockstep(stack.simulations, stack.states, 0, "stacked")
    stack.add(next(rounds))
    stack.save(tmp_path)
    [straight] = rounds
    saved, again = checkpoint.load_latest(tmp_path), make(DEVICE)
    assert saved is not None
    [resumed] = simulate.lockstep(again, Stack.resume(saved, again).states, 1, "stacked")
    ends = [trees.to(worlds.tree(one["run"].state), "cpu") for one in (resumed, straight)]
    assert worlds.same(*ends)
    assert straight["run"].traces.keys() == resumed["run"].traces.keys()
    finals = again["run"].final_weights(resumed["run"].state)
    checkpoint.save_tree(finals, tmp_path / "final")
    assert worlds.same(checkpoint.load_tree(tmp_path / "final", DEVICE), finals)
    on_cpu = make("cpu")["run"]
    expected = costs.measure(on_cpu, State(**trees.to(worlds.tree(resumed["run"].state), "cpu")))
    assert costs.measure(again["run"], resumed["run"].state) == expected


@pytest.mark.parametrize("augmentation", ["none", "crop-flip"])
def test_samples_that_stay_in_host_memory_are_the_cpus(augmentation: str) -> None:
    x, y = np.random.default_rng(0).random((9, 1, 6, 6)), np.arange(9)
    index, keys = torch.tensor([[3, 1], [8, 3]]), torch.tensor([[5, 6], [7, 8]])

    def batch(device: str) -> dict[str, Tensor]:
        arrays = Arrays(
            x, y, worlds.NORMALISATION, device, torch.float64, 0, augmentation=augmentation
        )
        given = (t.to(device) for t in (index, torch.ones(2, 2), keys))
        return trees.to(arrays.batch(*given), "cpu")

    assert worlds.same(batch(DEVICE), batch("cpu"))


# Analyses that compute with models


@pytest.mark.parametrize(
    "analysis", [Membership(samples=4), Inversion(batch=2, steps=3), Features(samples=20)]
)
def test_analyses_are_the_cpus(analysis: Any) -> None:
    pytest.importorskip("matplotlib", reason="analyses draw")

    def table(device: str) -> pd.DataFrame:
        run = world("ditto", "cnn", device=device, **SHORT)
        state, draw = run.begin(), torch.Generator().manual_seed(0)
        source = SimpleNamespace(
            run="r0",
            method="m",
            setting=("digits", "natural", "cnn"),
            seed=0,
            simulation=lambda: run,
            weights=lambda: run.final_weights(state),
            traces=lambda: {"local": torch.rand(1, 4, 3, 1, 4, 4, generator=draw).double()},
        )
        made: pd.DataFrame = analysis.read([source]).table
        return made

    pd.testing.assert_frame_equal(table(DEVICE), table("cpu"))
