"""Steps of local training with fedjax and with pfl: ``make bench PEERS=1``.

The workloads of `bench.local_steps`, in an environment without Fedloom. Each package trains rounds
of its own federated averaging in its own way, and takes its turn `--repeats` times; the shortest
round of each counts. All run on one core (Linux), which the threads that they start must share.
The first round does not count: fedjax compiles in it, pfl compiles nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import time
from importlib.metadata import version
from types import ModuleType

import numpy as np
import torch

from bench import peers_fedjax, peers_pfl
from bench.asked import one_of
from bench.workloads import WORKLOADS

PEERS: dict[str, ModuleType] = {"fedjax": peers_fedjax, "pfl": peers_pfl}


def total(name: str, peer: str, weights: list[np.ndarray]) -> float:
    """The sum of the weights, which must be as many as the workload's network has."""
    count = sum(w.size for w in weights)
    assert count == WORKLOADS[name].weights, f"{peer}: another network in {name}, {count} weights"
    return sum(float(w.sum()) for w in weights)


def measure(name: str, limit: int, repeats: int) -> dict[str, float]:
    """Seconds a local step of one client, by package that has the network; ``compiling`` is in
    seconds, of fedjax.
    """
    work = WORKLOADS[name]
    steps = work.steps(limit)
    before = peers_fedjax.compiling()
    able = {peer: module for peer, module in PEERS.items() if name in module.NETS}
    rounds = {peer: module.begin(name, work, steps) for peer, module in able.items()}
    sums = {peer: total(name, peer, train()) for peer, train in rounds.items()}
    compiled = peers_fedjax.compiling()
    times = dict.fromkeys(able, math.inf)
    for _ in range(repeats):
        for peer, train in rounds.items():
            begun = time.perf_counter()
            weights = train()
            times[peer] = min(times[peer], (time.perf_counter() - begun) / work.clients / steps)
            last, sums[peer] = sums[peer], total(name, peer, weights)
            assert math.isfinite(sums[peer]) and sums[peer] != last, f"{peer} trains not {name}"
    assert peers_fedjax.compiling() == compiled, "a round that counts was compiled in part"
    return times | {"compiling": compiled - before}


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "workloads",
        nargs="*",
        type=one_of(WORKLOADS),
        default=[n for n in WORKLOADS if WORKLOADS[n].least is None],
    )
    parser.add_argument("--steps", type=int, default=50, help="steps of each client, at most")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
    torch.set_num_threads(1)
    packages = ", ".join(f"{name} {version(name)}" for name in (*PEERS, "jax", "torch"))
    where = platform.processor() or platform.machine()
    print(f"{packages}, {where}, one core; microseconds a local step of a client\n")
    print("| | fedjax | pfl | compiling (fedjax), s |")
    print("|---|---:|---:|---:|")
    for name in asked.workloads:
        found = measure(name, asked.steps, asked.repeats)
        shown = " | ".join(f"{1e6 * found[p]:,.1f}" if p in found else "-" for p in PEERS)
        print(
            f"| {name}: {WORKLOADS[name].title} | {shown} | {found['compiling']:.1f} |", flush=True
        )
    print("\nfedjax has no batch normalisation: its models have no state to keep it in.")
    print("pfl does not shuffle: a client's batches are the same in every epoch.")


if __name__ == "__main__":
    main()
