"""One evaluation of all clients beside one round of training, in one run.

Every client has a third as many test samples as training samples, as where a quarter is held out.
A round and an evaluation are taken in turn, ``--repeats`` times; the shortest of each counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from bench import machine
from bench.local_steps import MODELS, PLAIN
from bench.workloads import CLASSES, LR, MOMENTUM, WORKLOADS
from fl.api.method import Setting
from fl.api.network import Network
from fl.api.training import Training
from fl.engine import engine
from fl.engine.arrays import Arrays
from fl.engine.held import Held
from fl.engine.simulate import Simulation
from fl.methods.ditto import Ditto
from fl.methods.fedavg import FedAvg
from fl.models.cnn import CNN

METHODS: Mapping[str, Any] = {"FedAvg": FedAvg, "Ditto": Ditto}
BACKENDS = ("loop", "stacked", "compiled")
DIGITS = (1, 8, 8)


def worlds() -> dict[str, Callable[[Any], Simulation]]:
    """By title, a method's run on the workload."""
    found: dict[str, Callable[[Any], Simulation]] = {}
    for name in ("W1", "W3", "W4"):
        work = WORKLOADS[name]
        found[f"{name}: {work.title}"] = lambda method, name=name, work=work: simulation(
            method, MODELS[name], work.sizes, work.shape, work.batch, work.epochs
        )
    found["30 clients x 45 of 1x8x8, CNN, batch 10, three epochs"] = lambda method: simulation(
        method, lambda: CNN().build(DIGITS, CLASSES), [45] * 30, DIGITS, 10, 3
    )
    return found


def simulation(
    method: Any,
    model: Callable[[], nn.Module],
    sizes: Sequence[int] | np.ndarray,
    shape: tuple[int, ...],
    batch: int,
    epochs: int,
) -> Simulation:
    """A method's run over generated data; sizes: training samples of each client."""
    draw = np.random.default_rng(0)
    tests = [max(1, int(size) // 3) for size in sizes]
    total = int(np.sum(sizes)) + sum(tests)
    x = draw.standard_normal((total, *shape), dtype=np.float32)
    y = draw.integers(0, CLASSES, total)
    ends = np.cumsum([n for pair in zip(sizes, tests, strict=True) for n in pair])
    parts = np.split(np.arange(total), ends[:-1])
    held = Held({"train": parts[::2], "test": parts[1::2]})
    training = Training(
        rounds=1000, local_epochs=epochs, batch_size=batch, lr=LR, momentum=MOMENTUM
    )
    network = Network(model)
    setting = Setting(network, training, CLASSES, len(sizes), shape)
    arrays = Arrays(x, y, PLAIN)
    return Simulation(method().build(setting), network, training, arrays, held, CLASSES, seed=0)


def measure(
    run: Simulation, backends: Sequence[str], repeats: int
) -> tuple[dict[str, float], float]:
    """Seconds of a round by backend, and of an evaluation."""
    plan, state = run.plan(1), run.begin()
    # As after a round: every client has a model of its own.
    state, _ = engine.run_round(run.method, state, plan, backends[0])
    rounds, scores = dict.fromkeys(backends, float("inf")), float("inf")
    for attempt in range(repeats + 1):
        for backend in backends:
            begun = time.perf_counter()
            engine.run_round(run.method, state, plan, backend)
            if attempt:  # The first one warms up, and compiles.
                rounds[backend] = min(rounds[backend], time.perf_counter() - begun)
        begun = time.perf_counter()
        run.evaluate(state, 1)
        scores = min(scores, time.perf_counter() - begun)
    return rounds, scores


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backends", nargs="+", default=["stacked"], choices=BACKENDS)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    machine.begin("milliseconds")
    columns = " | ".join(asked.backends)
    print(f"| | method | evaluation | round: {columns} | evaluation against fastest round |")
    print(f"|---|---|---:|{'---:|' * len(asked.backends)}---:|")
    for title, of in worlds().items():
        for name, method in METHODS.items():
            rounds, scores = measure(of(method), asked.backends, asked.repeats)
            shown = " | ".join(f"{1e3 * rounds[backend]:,.1f}" for backend in asked.backends)
            share = scores / min(rounds.values())
            print(f"| {title} | {name} | {1e3 * scores:,.2f} | {shown} | {share:.1%} |", flush=True)


if __name__ == "__main__":
    main()
