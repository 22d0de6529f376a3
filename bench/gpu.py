"""Everything about one GPU in one command: ``make bench-gpu``, in at most ten minutes.

It needs torch 2.11 or later, what training needs beside it, and nothing of the workflow. Checks
come first: that the stack gives what the loop gives on the card, and the card what the CPU gives.
Then come times: steps of W1 to W4, FedAvg on images of CIFAR-10's shape with the CNN of Ayromlou
and Emerson 2025, a round of ResNet-18 over 100 clients, each in every way of computing, and several
runs on one card. A part that fails says so in the table, and the others go on; a part for which no
time is left is named.

``--rehearse`` does all of it on tiny sizes, on the CPU too.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench import machine
from bench.local_steps import MODELS, clock, measure, simulation
from bench.workloads import CLASSES, WORKLOADS, Workload
from fl.api import trees
from fl.engine import engine
from fl.engine.simulate import Simulation
from fl.engine.state import Plan
from fl.models.cifar_cnn import CifarCNN
from fl.models.resnet18 import ResNet18

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from contract import worlds

MINUTES = 10.0
LIMITS = {"float32": 1e-6, "float64": 1e-10}
"""How far stacked may be from loop on the card."""

APART = {"float32": 1e-4, "float64": 1e-9}
"""How far the card may be from the CPU: sums are taken in another order on it."""

METHODS = ("fedavg", "fedprox", "scaffold", "fedbn", "fedrep", "moon", "ditto", "mrmtl", "fedfm")
SHAPE = (3, 32, 32)

WAYS: dict[str, dict[str, Any]] = {
    "float32": {},
    "TF32": {"tf32": True},
    "mixed": {"precision": "mixed"},
    "channels-last": {"memory_format": "channels-last"},
    "mixed, channels-last": {"precision": "mixed", "memory_format": "channels-last"},
    "compiled with CUDA graphs": {"graphs": True},
}


@dataclass(frozen=True)
class Scale:
    """How much is done.

    steps, repeats: of the workloads. samples: of each of CIFAR-10's five clients; batch, hidden: of
    its batches and network; rounds. clients: of ResNet-18, each with ``each`` batches. small:
    whether workloads and ResNet are small too. processes: how many runs share the card.
    """

    steps: int = 200
    repeats: int = 2
    samples: int = 8000
    batch: int = 32
    hidden: int = 2048
    rounds: int = 10
    epochs: int = 5
    clients: int = 100
    each: int = 4
    small: bool = False
    processes: tuple[int, ...] = (1, 2, 4)


TINY = Scale(2, 1, 8, 4, 8, 1, 1, 2, 1, True, (1, 2))


@dataclass(frozen=True)
class Bench:
    """A device, and how much is done on it."""

    device: str
    scale: Scale

    def contract(self) -> Iterator[str]:
        """Stacked beside loop, on the device."""
        for precision, limit in LIMITS.items():
            sides = (self.device, "loop"), (self.device, "stacked")
            found = {method: self._distance(*sides, method, precision) for method in self._methods}
            yield _verdict(f"stacked = loop, {precision}", found, limit)

    def beside_cpu(self) -> Iterator[str]:
        """The device beside the CPU."""
        for precision, limit in APART.items():
            sides = ("cpu", "loop"), (self.device, "stacked")
            found = {method: self._distance(*sides, method, precision) for method in self._methods}
            yield _verdict(f"{self.device} = cpu, {precision}", found, limit)

    def steps(self) -> Iterator[str]:
        """Microseconds a local step of a client of W1 to W4."""
        for name in WORKLOADS:
            times = measure(name, self.device, self.scale.steps, self.scale.repeats, self._workload)
            sides = [times[side] for side in ("bare loop", "loop", "stacked", "compiled")]
            shown = " / ".join(f"{1e6 * t:,.1f}" for t in sides)
            yield (
                f"{name}, us a step: bare loop / loop / stacked / compiled | {shown}; "
                f"{sides[0] / min(sides[1:]):.1f}x the bare loop, "
                f"compiled in {times['compiling']:.0f} s"
            )

    def cifar(self) -> Iterator[str]:
        """FedAvg with the CNN: all its rounds in float32, and one round in every way."""
        scale = self.scale
        work = Workload("", 5, scale.samples, SHAPE, scale.batch, scale.epochs)
        model = lambda: CifarCNN(scale.hidden).build(SHAPE, CLASSES)  # noqa: E731
        for backend in ("loop", "stacked"):
            seconds = self._rounds(work, model, backend, scale.rounds)
            title = f"CIFAR-10-shaped FedAvg, {scale.rounds} rounds of {scale.epochs} epochs"
            yield f"{title}, {backend}, goal 30 s | {seconds:.1f} s"
        yield from self._ways("CIFAR-10 CNN, a round", work, model)

    def resnet(self) -> Iterator[str]:
        """A round of ResNet-18 over many clients, in every way."""
        scale = self.scale
        shape = (3, 8, 8) if scale.small else SHAPE
        work = Workload("", scale.clients, scale.each * scale.batch, shape, scale.batch, 1)
        title = f"ResNet-18, {scale.clients} clients of {scale.each} steps, a round"
        yield from self._ways(title, work, lambda: ResNet18().build(shape, CLASSES))

    def together(self) -> Iterator[str]:
        """Several runs of W3 on one card, each a process of its own."""
        alone = 0.0
        for count in self.scale.processes:
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(count, context) as pool:
                list(pool.map(_one_run, [self] * count))  # Imports and first calls.
                begun = time.perf_counter()
                list(pool.map(_one_run, [self] * count))
                seconds = time.perf_counter() - begun
            alone = alone or seconds
            rate = count * alone / seconds
            yield f"W3, {count} runs at once | {seconds:.1f} s, {rate:.2f}x the runs of one alone"

    @property
    def _methods(self) -> tuple[str, ...]:
        return METHODS[::4] if self.scale.small else METHODS

    def _workload(self, name: str) -> Workload:
        work = WORKLOADS[name]
        if not self.scale.small:
            return work
        least = work.least and work.batch
        return replace(work, clients=2, samples=2 * work.batch, least=least)

    def _distance(
        self, one: tuple[str, str], other: tuple[str, str], method: str, precision: str
    ) -> float:
        """How far the weights of two runs are apart, each on a device and by a backend."""
        found = []
        for device, backend in (one, other):
            run = worlds.world(method, "cnn", device=device, precision=precision)
            state, _ = worlds.run(run, backend)
            found.append(trees.to(worlds.tree(state), "cpu"))
        return worlds.distance(*found)

    def _ways(self, title: str, work: Workload, model: Callable[[], nn.Module]) -> Iterator[str]:
        """A round by the stack in every way of computing, and by the loop."""
        first = self._rounds(work, model, "loop", 1)
        yield f"{title}: loop, float32 | {first:.2f} s"
        for way, training in WAYS.items():
            settings = dict(training)
            tf32, graphs = settings.pop("tf32", False), settings.pop("graphs", False)
            backend = "compiled" if graphs else "stacked"
            if graphs and self.device == "cpu":
                yield f"{title}: {backend}, {way} | not on a CPU"
                continue
            with _computing(tf32, graphs):
                try:
                    seconds = self._rounds(work, model, backend, 1, **settings)
                except Exception as error:  # The other ways still count.
                    yield f"{title}: {backend}, {way} | {_brief(error)}"
                    continue
            taken = f"{seconds:.2f} s, {first / seconds:.2f}x the loop"
            memory = f", {_peak():,.0f} MiB" if self.device == "cuda" else ""
            yield f"{title}: {backend}, {way} | {taken}{memory}"

    def _rounds(
        self,
        work: Workload,
        model: Callable[[], nn.Module],
        backend: str,
        rounds: int,
        **training: Any,
    ) -> float:
        """Seconds of so many rounds, after a short one that does not count."""
        run = simulation(work, model, self.device, **training)
        engine.run_round(run.method, run.begin(), _short(run), backend)
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        state, plans = run.begin(), [run.plan(number) for number in range(1, rounds + 1)]
        begun = clock(run.arrays.device)
        for plan in plans:
            state, losses = engine.run_round(run.method, state, plan, backend)
        seconds = clock(run.arrays.device) - begun
        assert losses.isfinite().all()
        return seconds


def _short(run: Simulation) -> Plan:
    """A round of as many steps as a compiled program has."""
    plan = run.plan(1)
    return plan.with_schedules(s and s.begin(8, ()) for s in plan.schedules)


def _one_run(bench: Bench) -> None:
    machine.quiet()
    work = bench._workload("W3")
    run = simulation(work, MODELS["W3"], bench.device)
    state = run.begin()
    for number in range(1, 3 if bench.scale.small else 21):
        state, _ = engine.run_round(run.method, state, run.plan(number), "stacked")
    clock(run.arrays.device)


@contextlib.contextmanager
def _computing(tf32: bool, graphs: bool) -> Iterator[None]:
    """Inside, products of float32 may be rounded to TF32, and compiled programs be CUDA graphs."""
    from torch._inductor import config

    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        with config.patch({"triton.cudagraphs": graphs}):
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def _peak() -> float:
    return torch.cuda.max_memory_allocated() / 2**20


def _verdict(title: str, found: dict[str, float], limit: float) -> str:
    worst = max(found, key=found.__getitem__)
    kept = "holds" if found[worst] <= limit else "DOES NOT HOLD"
    return f"{title} to {limit:.0e}, {len(found)} methods | {kept}: {found[worst]:.1e} ({worst})"


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"


# W1 to W4 come last, as compiling takes longest and can then keep nothing else from being done.
PARTS = ("contract", "beside_cpu", "cifar", "resnet", "together", "steps")


def table(bench: Bench, minutes: float = MINUTES, only: Sequence[str] = PARTS) -> Iterator[str]:
    """The rows of the table, as they are found."""
    begun = time.perf_counter()
    for name in [name for name in PARTS if name in only]:
        if time.perf_counter() - begun > 60 * minutes:
            yield f"{name} | left out: {minutes:.0f} minutes are over"
            continue
        try:
            yield from getattr(bench, name)()
        except Exception as error:
            yield f"{name} | {_brief(error)}"


def main() -> None:
    """Print the table in Markdown, and write it to a file if one is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="begin no part after them")
    parser.add_argument("--only", nargs="*", help="parts, by name")
    parser.add_argument("--write", type=Path, help="a file for the table")
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("No card that torch can use; a rehearsal: --device cpu --rehearse")
    where = machine.begin("one run at a time", asked.device)
    lines = ["| | |", "|---|---|"]
    print("\n".join(lines), flush=True)
    for row in table(
        Bench(asked.device, TINY if asked.rehearse else Scale()), asked.minutes, asked.only or PARTS
    ):
        lines.append(f"| {row} |")
        print(lines[-1], flush=True)
    if asked.write:
        asked.write.write_text("\n".join([where, "", *lines, ""]))


if __name__ == "__main__":
    main()
