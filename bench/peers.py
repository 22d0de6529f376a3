"""Steps of local training with fedjax and with pfl: ``make bench PEERS=1``.

The workloads of `bench.local_steps`, in an environment without Fedloom. Each package trains rounds
of its own federated averaging in its own way, and takes its turn `--repeats` times; the shortest
round of each counts. All run on one core (Linux), which the threads that they start must share.
What the first round of fedjax takes beyond the shortest is compilation; pfl compiles nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import time
from importlib.metadata import version
from types import ModuleType

import torch

from bench import peers_fedjax, peers_pfl
from bench.workloads import WORKLOADS

PEERS: dict[str, ModuleType] = {"fedjax": peers_fedjax, "pfl": peers_pfl}


def measure(name: str, limit: int, repeats: int) -> dict[str, tuple[float, float]]:
    """Seconds a local step of one client, and of the first round beyond, by package."""
    work = WORKLOADS[name]
    steps = work.steps(limit)
    rounds = {peer: module.begin(name, work, steps) for peer, module in PEERS.items()}
    times: dict[str, list[float]] = {peer: [] for peer in PEERS}
    sums = dict.fromkeys(PEERS, 0.0)
    for _ in range(1 + repeats):
        for peer, train in rounds.items():
            begun = time.perf_counter()
            weights = train()
            times[peer].append(time.perf_counter() - begun)
            count = sum(w.size for w in weights) + PEERS[peer].LACKING.get(name, 0)
            assert count == work.weights, f"{peer} has another network in {name}: {count} weights"
            before, sums[peer] = sums[peer], sum(float(w.sum()) for w in weights)
            assert math.isfinite(sums[peer]) and sums[peer] != before, f"{peer} trains not {name}"
    return {
        peer: (min(later) / work.clients / steps, first - min(later))
        for peer, (first, *later) in times.items()
    }


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
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
        shown = " | ".join(f"{1e6 * step:,.1f}" for step, _ in found.values())
        print(
            f"| {name}: {WORKLOADS[name].title} | {shown} | {found['fedjax'][1]:.1f} |", flush=True
        )
    print("\nfedjax trains W3 without batch normalisation: its models have no state to keep it in.")


if __name__ == "__main__":
    main()
