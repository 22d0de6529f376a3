"""Rounds of FedAvg on an MLP, stacked, beside a loop written by hand in JAX.

    OMP_NUM_THREADS=1 python -m bench.jax_rounds --python VENV/bin/python

VENV has jax, which nothing else here needs. The loop is what one would write: a jitted round in
which `vmap` runs over clients and `lax.scan` over batches. Both sides train networks of the same
layers on the same generated samples, of the size of the digits, in batches of permutations that
they draw. Seconds are the processor's. Both sides are processes on one processor, which train some
rounds before the clock starts, so that neither start nor compiling counts, and then take turns of
some rounds each, ``--turns`` times: what else runs on the machine slows both down. The medians of
the turns count, and of the ratios of neighbouring turns. ``FEDLOOM_ARITHMETIC=native`` before the
command computes natively.

``--profile`` prints where the time of a stacked step goes: its matrix products and its update of
weights by themselves, and a step of the same calls on layers of width 1.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from fl.base import arithmetic  # noqa: E402

arithmetic.choose()  # Before NumPy is imported.

import numpy as np  # noqa: E402

from bench.workloads import CLASSES, LR, Workload  # noqa: E402

WORK = Workload("20 clients x 60, 64-200-200-10 ReLU net, batch 10", 20, 60, (64,), 10, 5)
WIDTHS = (64, 200, 200, CLASSES)
FIRST, TURN = 10, 5
"""Rounds before the clock starts, and rounds of a turn."""


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

    for number in count():
        model, momentum, mean = round_of(model, momentum, jax.random.key(number))
        yield float(mean)


def fedloom_rounds(widths: tuple[int, ...] = WIDTHS) -> Iterator[float]:
    """Train by the stacked backend and yield the mean loss of each round."""
    from fl.cli.commands import loading

    with loading():  # As the command does.
        from bench import timing
        from fl.engine import simulate
        from fl.models.mlp import MLP

    timing.quiet()
    rounds = 100_000
    run = timing.simulation(
        *(WORK, lambda: MLP(widths[1:-1]).build(WORK.shape, CLASSES)),
        rounds=rounds,
        evaluate_every=rounds,
    )
    for finished in simulate.rounds(run, run.begin(), 0, "stacked"):
        yield finished.loss


SIDES: dict[str, Callable[[], Iterator[float]]] = {"fedloom": fedloom_rounds, "jax": jax_rounds}


def take_turns(side: str) -> None:
    """Train a turn for each line of the input, and print its seconds and its last loss."""
    rounds = SIDES[side]()
    for _ in islice(rounds, FIRST):
        pass
    print("ready", flush=True)
    for _ in sys.stdin:
        begun = time.process_time()
        *_, last = islice(rounds, TURN)
        print(time.process_time() - begun, last, flush=True)


@contextmanager
def process_of(python: str, side: str) -> Iterator[Callable[[], tuple[float, float]]]:
    """Start a process of a side; the function trains a turn in it (`take_turns`)."""
    command = [python, str(Path(__file__).resolve()), "--side", side]
    environment = arithmetic.environment_of(os.environ.get(arithmetic.CHOICE_VARIABLE, "portable"))
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        assert process.stdin and process.stdout
        requests, answers = process.stdin, process.stdout

        def turn() -> tuple[float, float]:
            print(file=requests, flush=True)
            seconds, loss = answers.readline().split()
            return float(seconds), float(loss)

        if answers.readline().strip() != "ready":
            raise SystemExit(f"{side}: {python} trained no rounds")
        yield turn
        requests.close()


def compare(python: str, turns: int) -> None:
    """Print the seconds of both sides and their ratio."""
    with ExitStack() as processes:
        pythons = {"fedloom": sys.executable, "jax": python}
        sides = {side: processes.enter_context(process_of(pythons[side], side)) for side in SIDES}
        times = [[turn() for turn in sides.values()] for _ in range(turns)]
    seconds, losses = np.moveaxis(np.array(times), -1, 0)
    for side, median, loss in zip(SIDES, np.median(seconds, 0), losses[-1], strict=True):
        print(f"{side}: {median:.3f} s for {TURN} rounds, last loss {loss:.4f}")
    low, middle, high = np.quantile(seconds[:, 0] / seconds[:, 1], [0.25, 0.5, 0.75])
    print(
        f"{middle:.2f} times the time of the loop in JAX (half of the turns: {low:.2f}-{high:.2f})"
    )


def profile(tries: int) -> str:
    """Return where the time of a stacked step goes, as a table in Markdown."""
    from bench import timing

    whole, calls = fedloom_rounds(), fedloom_rounds((WIDTHS[0], 1, 1, CLASSES))
    steps = WORK.epochs * WORK.samples // WORK.batch
    products, update = _products(), _update()
    parts = {
        "a step": lambda: next(whole),
        "its calls, on layers of width 1": lambda: next(calls),
        "its matrix products": lambda: [products() for _ in range(steps)],
        "its update of weights and momentum": lambda: [update() for _ in range(steps)],
    }
    times = timing.shortest(parts.values(), tries)
    rows = [f"| {part} | {1e6 * t / steps:,.0f} |" for part, t in zip(parts, times, strict=True)]
    return "\n".join(["| part | microseconds |", "|---|---:|", *rows])


def _products() -> Callable[[], object]:
    """Return what multiplies matrices as a step does, forward and backward, without autograd."""
    import torch

    from fl.pytorch.products import input_gradients, outputs, weight_gradients

    layers = [
        [torch.randn(WORK.clients, *shape) for shape in ((WORK.batch, a), (b, a), (WORK.batch, b))]
        for a, b in pairwise(WIDTHS)
    ]

    @torch.no_grad()
    def products() -> None:
        for number, (x, weight, slopes) in enumerate(layers):
            outputs(x, weight, None)
            weight_gradients(slopes, x)
            if number:
                input_gradients(slopes, weight)

    return products


def _update() -> Callable[[], object]:
    """Return what steps down with momentum, as `fl.api.optimizers.sgd` does."""
    import torch

    from fl.api.optimizers import sgd
    from fl.api.trees import Scratch, Tree

    optimizer = sgd(WORK.momentum)
    shapes = [shape for a, b in pairwise(WIDTHS) for shape in ((b, a), (b,))]
    params: Tree = {str(i): torch.randn(WORK.clients, *s) for i, s in enumerate(shapes)}
    state = optimizer.init(params)
    grads: Tree = {name: torch.randn_like(weight) for name, weight in params.items()}

    def update() -> None:
        nonlocal params, state
        params, state = optimizer.step(params, Scratch.of(grads, in_place=True), state, LR)

    return update


def main() -> None:
    """Print seconds of both sides and their ratio, or a profile."""
    parser = argparse.ArgumentParser("python -m bench.jax_rounds", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="one that has jax")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        # XLA has threads of its own, for which OMP_NUM_THREADS is no limit.
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        take_turns(asked.side)
    elif asked.profile:
        print(profile(asked.turns))
    else:
        compare(asked.python, asked.turns)


if __name__ == "__main__":
    main()
