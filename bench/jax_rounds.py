"""Rounds of FedAvg on an MLP, stacked, beside a loop written by hand in JAX.

    OMP_NUM_THREADS=1 python -m bench.jax_rounds --python VENV/bin/python

VENV has jax, which nothing else here needs. The loop is what one would write: a jitted round in
which `vmap` runs over clients and `lax.scan` over batches. Both sides train networks of the same
layers on the same generated samples, of the size of the digits, in batches of permutations that
they draw. Seconds are the processor's, of a process on one processor, and of the rounds that follow
some others, so that neither start nor compiling is in them. The sides take turns, ``--repeats``
times; the shortest time of each counts. ``--profile`` prints where the stacked side's time goes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from bench.workloads import CLASSES, LR, Workload  # noqa: E402

WORK = Workload("20 clients x 60, 64-200-200-10 ReLU net, batch 10", 20, 60, (64,), 10, 5)
WIDTHS = (64, 200, 200, CLASSES)
FIRST, MORE = 10, 30
"""Rounds before the clock starts, and rounds that it measures."""
GROUPS = {
    "matrix products": ("aten::bmm", "aten::baddbmm", "aten::mm", "aten::addmm"),
    "additions and products by element": ("aten::add", "aten::sub", "aten::mul", "aten::neg"),
    "autograd's engine": ("autograd::",),
}
"""Operators by the beginnings of their names."""


def jax_rounds() -> Iterator[float]:
    """Train by hand and yield the mean loss of each round."""
    import jax
    import jax.numpy as jnp

    x, y = (a.reshape(WORK.clients, WORK.samples, *a.shape[1:]) for a in WORK.draw())
    batches = WORK.samples // WORK.batch
    draw = np.random.default_rng(0)
    model: Any = [
        (
            jnp.asarray(draw.uniform(-1, 1, (a, b)) / a**0.5, jnp.float32),
            jnp.asarray(draw.uniform(-1, 1, b) / a**0.5, jnp.float32),
        )
        for a, b in pairwise(WIDTHS)
    ]
    momentum = jax.tree.map(lambda w: jnp.zeros((WORK.clients, *w.shape)), model)

    def loss(model: Any, x: Any, y: Any) -> Any:
        for weight, bias in model[:-1]:
            x = jax.nn.relu(x @ weight + bias)
        weight, bias = model[-1]
        return -jnp.take_along_axis(jax.nn.log_softmax(x @ weight + bias), y[:, None], 1).mean()

    def train(model: Any, momentum: Any, x: Any, y: Any, key: Any) -> Any:
        keys = jax.random.split(key, WORK.epochs)
        order = jax.vmap(lambda key: jax.random.permutation(key, WORK.samples))(keys)

        def step(state: Any, rows: Any) -> Any:
            model, momentum = state
            value, grads = jax.value_and_grad(loss)(model, x[rows], y[rows])
            momentum = jax.tree.map(lambda m, g: WORK.momentum * m + g, momentum, grads)
            model = jax.tree.map(lambda w, m: w - LR * m, model, momentum)
            return (model, momentum), value

        rows = order.reshape(WORK.epochs * batches, WORK.batch)
        (model, momentum), losses = jax.lax.scan(step, (model, momentum), rows)
        return model, momentum, losses.mean()

    @jax.jit
    def round_of(model: Any, momentum: Any, key: Any) -> Any:
        keys = jax.random.split(key, WORK.clients)
        models, momentum, losses = jax.vmap(train, in_axes=(None, 0, 0, 0, 0))(
            model, momentum, x, y, keys
        )
        return jax.tree.map(lambda w: w.mean(0), models), momentum, losses.mean()

    for number in range(FIRST + MORE):
        model, momentum, mean = round_of(model, momentum, jax.random.key(number))
        yield float(mean)


def fedloom_rounds() -> Iterator[float]:
    """Train by the stacked backend and yield the mean loss of each round."""
    from bench import timing
    from fl.engine import simulate
    from fl.models.mlp import MLP

    timing.quiet()
    run = timing.simulation(
        *(WORK, lambda: MLP(WIDTHS[1:-1]).build(WORK.shape, CLASSES)),
        evaluate_every=FIRST + MORE + 1,
    )
    for finished in simulate.rounds(run, run.begin(), 0, "stacked"):
        yield finished.loss


SIDES: dict[str, Callable[[], Iterator[float]]] = {"fedloom": fedloom_rounds, "jax": jax_rounds}


def measure(side: str) -> None:
    """Print the processor's seconds of some more rounds of a side, and the last loss."""
    rounds = SIDES[side]()
    for _ in islice(rounds, FIRST):
        pass
    begun = time.process_time()
    *_, last = islice(rounds, MORE)
    print(time.process_time() - begun, last)


def child(python: str, side: str) -> tuple[float, float]:
    """The seconds and the last loss of a side, measured in a process on one processor."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, str(Path(__file__).resolve()), "--side", side],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds, loss = done.stdout.split()[-2:]
    return float(seconds), float(loss)


def profile() -> str:
    """Where the time of the rounds of `fedloom_rounds` goes, as a table in Markdown."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    rounds = fedloom_rounds()
    for _ in islice(rounds, FIRST):
        pass
    begun = time.process_time()
    with torch_profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in islice(rounds, MORE):
            pass
        taken = time.process_time() - begun
    spent = dict.fromkeys((*GROUPS, "other operators"), 0.0)
    calls = 0
    for event in found.key_averages():
        [*names] = [name for name, keys in GROUPS.items() if event.key.startswith(keys)]
        spent[names[0] if names else "other operators"] += event.self_cpu_time_total / 1e6
        calls += event.count if event.key.startswith("aten::") else 0
    spent["Python and the rest"] = taken - sum(spent.values())
    steps = MORE * WORK.epochs * WORK.samples // WORK.batch
    rows = [f"| {name} | {seconds / taken:.0%} |" for name, seconds in spent.items()]
    head = f"{calls / steps:.0f} operators a step.\n\n| part | share |\n|---|---:|"
    return "\n".join([head, *rows])


def main() -> None:
    """Print seconds of both sides and their ratio, or a profile."""
    parser = argparse.ArgumentParser("python -m bench.jax_rounds", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="one that has jax")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        # XLA has threads of its own, for which OMP_NUM_THREADS is no limit.
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        measure(asked.side)
    elif asked.profile:
        print(profile())
    else:
        pythons = {"fedloom": sys.executable, "jax": asked.python}
        tries = [[child(pythons[side], side) for side in SIDES] for _ in range(asked.repeats)]
        for side, its in zip(SIDES, zip(*tries, strict=True), strict=True):
            print(f"{side}: {min(its)[0]:.2f} s for {MORE} rounds, last loss {its[0][1]:.3f}")
        ours, theirs = (min(its)[0] for its in zip(*tries, strict=True))
        print(f"{ours / theirs:.2f} times the time of the loop in JAX")


if __name__ == "__main__":
    main()
