"""Everything about one GPU in one command: ``make bench-gpu``, in at most ten minutes.

It needs torch 2.11 or later, what training needs beside it, and nothing of the workflow. Checks
come first: that the stack gives what the loop gives on the card, and the card what the CPU gives.
Then come times: FedAvg on images of CIFAR-10's shape with the CNN of Ayromlou and Emerson 2025, a
round of ResNet-18 over 100 clients, each in every way of computing, and steps of W1 to W4. A part
that fails says so in the table, and the others go on; a part for which no time is left is named.

``--rehearse`` does all of it on tiny sizes, on the CPU too.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bench import steps
from bench.timing import Make, begin, clock, simulation
from bench.workloads import CLASSES, WORKLOADS, Workload
from fl.api import trees
from fl.engine import engine
from fl.models.cifar_cnn import CifarCNN
from fl.models.resnet18 import ResNet18

sys.path.extend(str(Path(__file__).resolve().parents[1] / f) for f in ("tests", "tests/helpers"))
import worlds

MINUTES = 10.0
LIMITS = {"float32": 1e-6, "float64": 1e-10}
"""How far stacked may be from loop on the card."""

APART = {"float32": 1e-4, "float64": 1e-9}
"""How far the card may be from the CPU: sums are taken in another order on it."""

METHODS = ("fedavg", "fedprox", "scaffold", "fedbn", "fedrep", "moon", "ditto", "mrmtl", "fedfm")
SHAPE = (3, 32, 32)

WAYS: dict[str, dict[str, Any]] = {
    "float32": {},
    "channels-last": {"memory_format": "channels-last"},
    "mixed": {"precision": "mixed"},
    "mixed, channels-last": {"precision": "mixed", "memory_format": "channels-last"},
    "TF32": {"tf32": True},
    "compiled with CUDA graphs": {"graphs": True},
}


@dataclass(frozen=True)
class Scale:
    """How much is done.

    steps: of the workloads. samples: of each of CIFAR-10's five clients; batch, hidden: of its
    batches and network; rounds, epochs. clients: of ResNet-18. small: whether all else is small.
    """

    steps: int = 200
    samples: int = 8000
    batch: int = 32
    hidden: int = 2048
    rounds: int = 10
    epochs: int = 5
    clients: int = 100
    small: bool = False


TINY = Scale(2, 8, 4, 8, 1, 1, 2, True)


@dataclass(frozen=True)
class Bench:
    """A device, and how much is done on it."""

    device: str
    scale: Scale

    def contract(self) -> Iterator[str]:
        """Stacked beside loop, on the device."""
        yield from self._checks("stacked = loop", (self.device, "loop"), LIMITS)

    def beside_cpu(self) -> Iterator[str]:
        """The device beside the CPU."""
        yield from self._checks(f"{self.device} = cpu", ("cpu", "loop"), APART)

    def steps(self) -> Iterator[str]:
        """Microseconds a local step of a client of W1 to W4."""
        for name in WORKLOADS:
            times = steps.measure(name, self.device, self.scale.steps, 2, self._workload)
            shown = " / ".join(f"{1e6 * times[side]:,.1f}" for side in steps.HEAD)
            ratio = times["bare loop"] / min(times[side] for side in steps.BACKENDS)
            compiling = f"compiled in {times['compiling']:.0f} s"
            sides = " / ".join(steps.HEAD)
            yield f"{name}, us a step: {sides} | {shown}; {ratio:.1f}x the bare loop, {compiling}"

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
        """A round of ResNet-18 over many clients of four batches, in every way."""
        scale = self.scale
        shape = (3, 8, 8) if scale.small else SHAPE
        work = Workload("", scale.clients, 4 * scale.batch, shape, scale.batch, 1)
        title = f"ResNet-18, {scale.clients} clients of 4 steps, a round"
        yield from self._ways(title, work, lambda: ResNet18().build(shape, CLASSES))

    def _workload(self, name: str) -> Workload:
        work = WORKLOADS[name]
        if not self.scale.small:
            return work
        return replace(work, clients=2, samples=2 * work.batch, least=work.least and work.batch)

    def _checks(
        self, title: str, other: tuple[str, str], limits: dict[str, float]
    ) -> Iterator[str]:
        """How far runs of methods by the stack on the device are from others, at most."""
        methods = METHODS[::4] if self.scale.small else METHODS
        for precision, limit in limits.items():
            apart = {}
            for method in methods:
                weights = []
                for device, backend in (other, (self.device, "stacked")):
                    run = worlds.world(method, "cnn", device=device, precision=precision)
                    state, _ = worlds.run(run, backend)
                    weights.append(trees.to(worlds.tree(state), "cpu"))
                apart[method] = worlds.distance(*weights)
            worst = max(apart, key=apart.__getitem__)
            verdict = "holds" if apart[worst] <= limit else "DOES NOT HOLD"
            says = f"{title}, {precision} to {limit:.0e}, {len(apart)} methods"
            yield f"{says} | {verdict}: {apart[worst]:.1e} ({worst})"

    def _ways(self, title: str, work: Workload, model: Make) -> Iterator[str]:
        """A round by the stack in every way of computing, and by the loop."""
        first = self._rounds(work, model, "loop", 1)
        yield f"{title}: loop, float32 | {first:.2f} s"
        for way, settings in WAYS.items():
            graphs = bool(settings.get("graphs"))
            backend = "compiled" if graphs else "stacked"
            if graphs and self.device == "cpu":
                continue
            training = {k: v for k, v in settings.items() if k not in ("tf32", "graphs")}
            with _computing(bool(settings.get("tf32")), graphs):
                try:
                    seconds = self._rounds(work, model, backend, 1, **training)
                except Exception as error:  # The other ways still count.
                    yield f"{title}: {backend}, {way} | {_brief(error)}"
                    continue
            taken = f"{seconds:.2f} s, {first / seconds:.2f}x the loop"
            if self.device == "cuda":
                taken += f", {torch.cuda.max_memory_allocated() / 2**20:,.0f} MiB"
            yield f"{title}: {backend}, {way} | {taken}"

    def _rounds(
        self, work: Workload, model: Make, backend: str, rounds: int, **training: Any
    ) -> float:
        """Seconds of so many rounds, after a short one that does not count."""
        run = simulation(work, model, self.device, **training)
        plans = [run.round_schedule(number) for number in range(1, rounds + 1)]
        few = plans[0].with_schedules(s and s.begin(8, ()) for s in plans[0].schedules)
        engine.run_round(run.method, run.begin(), few, backend)
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        state, begun = run.begin(), clock(run.arrays.device)
        for plan in plans:
            state, losses = engine.run_round(run.method, state, plan, backend)
        seconds = clock(run.arrays.device) - begun
        assert losses.isfinite().all()
        return seconds


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


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"


# W1 to W4 come last, as compiling takes longest and can then keep nothing else from being done.
PARTS = ("contract", "beside_cpu", "cifar", "resnet", "steps")


def table(bench: Bench, minutes: float = MINUTES, only: Sequence[str] = PARTS) -> Iterator[str]:
    """The rows of the table, as they come."""
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
    location = begin("one run at a time", asked.device)
    lines = ["| | |", "|---|---|"]
    print("\n".join(lines), flush=True)
    bench = Bench(asked.device, TINY if asked.rehearse else Scale())
    for row in table(bench, asked.minutes, asked.only or PARTS):
        lines.append(f"| {row} |")
        print(lines[-1], flush=True)
    if asked.write:
        asked.write.write_text("\n".join([location, "", *lines, ""]))


if __name__ == "__main__":
    main()
