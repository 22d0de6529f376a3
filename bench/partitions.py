"""Seconds that every scheme takes to partition 60,000 labels over 1,000 clients.

Labels, domains and natural clients are drawn at random. Beside the plain scheme stands the one that
deals a published test split of a sixth of the samples. The shortest of `--repeats` runs counts.
"""

from __future__ import annotations

import argparse
import logging
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fl.data import partition

CLASSES = 10
SCHEMES: dict[str, dict[str, Any]] = {
    "homogeneous()": {},
    "dirichlet(alpha=1)": {"alpha": 1.0},
    "dirichlet(alpha=0.01)": {"alpha": 0.01},
    "dirichlet(alpha=0.1, min_per_class=1)": {"alpha": 0.1, "min_per_class": 1},
    "client_dirichlet(alpha=0.1)": {"alpha": 0.1},
    "pathological(classes_per_client=2)": {"classes_per_client": 2},
    "dominant()": {},
    "power_law(classes_per_client=2)": {"classes_per_client": 2},
    "natural()": {},
    "domain()": {},
    "domain_dirichlet(alpha=0.1)": {"alpha": 0.1},
    "domain_dirichlet(alpha=0.1, equal_clients=True)": {"alpha": 0.1, "equal_clients": True},
}
"""What is measured: a scheme and its keys, beside those for how many clients there are."""


def calls(samples: int, clients: int) -> dict[str, Callable[..., pd.DataFrame]]:
    """By text, the schemes on one data set; each takes further keys."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, CLASSES, samples)
    domains = draw.integers(0, 10, samples)
    groups = draw.permutation(np.arange(samples) % clients)
    arrays = {"natural": {"groups": groups}, "domain": {"domains": domains}}
    arrays["domain_dirichlet"] = arrays["domain"]

    def call(text: str, keys: dict[str, Any]) -> Callable[..., pd.DataFrame]:
        name = text.partition("(")[0]
        if name.startswith("domain"):
            keys = {**keys, "clients_per_domain": clients // 10}
        elif name != "natural":
            keys = {**keys, "clients": clients}
        function, given = getattr(partition, name), arrays.get(name, {})
        return lambda **more: function(labels, **given, **keys, **more)

    return {text: call(text, keys) for text, keys in SCHEMES.items()}


def seconds(made: Callable[[], Any], repeats: int) -> float:
    """The shortest of ``repeats`` calls."""
    best = float("inf")
    for _ in range(repeats):
        begun = time.perf_counter()
        made()
        best = min(best, time.perf_counter() - begun)
    return best


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    split = (np.arange(asked.samples) % 6 == 0).astype(np.int8)
    published = {"published": split, "test": "published"}
    where = platform.processor() or platform.machine()
    sizes = f"{asked.samples:,} labels of {CLASSES} classes over {asked.clients:,} clients"
    print(f"numpy {np.__version__}, {where}; seconds for {sizes}\n")
    print("| | own test split | published test split |")
    print("|---|---:|---:|")
    found = calls(asked.samples, asked.clients)
    for text, call in found.items():
        own = seconds(call, asked.repeats)
        dealt = seconds(lambda call=call: call(**published), asked.repeats)
        print(f"| {text} | {own:.2f} | {dealt:.2f} |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path, labels = str(Path(folder) / "p.parquet"), np.zeros(asked.samples, int)
        partition.write(found["homogeneous()"](), path)
        own = seconds(lambda: partition.file(labels, path=path), asked.repeats)
        print(f"| file() | {own:.2f} | |")


if __name__ == "__main__":
    main()
