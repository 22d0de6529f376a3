"""What several runs cost together: seeds in one stack, and two runs on two cores.

Three seeds of W1 in one stack against one seed; two processes that train W2 at once against one
after the other. One thread each; the shortest of some tries counts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from bench import machine
from bench.local_steps import MODELS, simulation
from bench.workloads import WORKLOADS
from fl.train import candidates


def seconds(name: str, backend: str, seeds: int, steps: int, tries: int = 3) -> float:
    """Seconds that a step of all clients of so many seeds takes."""
    one = simulation(WORKLOADS[name], MODELS[name], "cpu")
    runs = [replace(one, seed=seed) for seed in range(seeds)]
    return candidates.seconds_a_step(
        [run.method for run in runs],
        [run.begin() for run in runs],
        [run.plan(1) for run in runs],
        *(backend, steps, tries),
    )


def at_once(processes: int, name: str, steps: int) -> float:
    """Seconds in which so many processes each train ``steps`` steps of all clients by the loop."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, machine.begin) as pool:
        arguments = [[name] * processes, ["loop"] * processes, [1] * processes]
        list(pool.map(seconds, *arguments, [1] * processes))  # Imports and first calls.
        begun = time.perf_counter()
        list(pool.map(seconds, *arguments, [steps] * processes, [1] * processes))
        return time.perf_counter() - begun


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    asked = parser.parse_args()
    machine.begin()
    for backend in ("stacked", "compiled"):
        one, three = (seconds("W1", backend, seeds, asked.steps) for seeds in (1, 3))
        print(f"W1, {backend}: three seeds in one stack cost {three / one:.2f} x one", flush=True)
    few = max(1, asked.steps // 4)
    ratio = 2 * at_once(1, "W2", few) / at_once(2, "W2", few)
    print(f"W2: two runs on two cores are {ratio:.2f} x as fast as one after the other")


if __name__ == "__main__":
    main()
