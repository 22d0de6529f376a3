"""Processor time of a training step, portable beside native: ``python -m bench.arithmetic``.

A step of SGD on a batch of 32 images, on one thread, in a process for each arithmetic, in turn,
``--tries`` times; the shortest time of each counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

from fl.base import arithmetic

MODELS: dict[str, tuple[str, dict[str, Any], tuple[int, int, int]]] = {
    "MLP, 200 and 200 hidden": ("mlp", {"hidden": [200, 200]}, (1, 28, 28)),
    "CNN, 8 and 16 channels": ("cnn", {"channels": [8, 16]}, (1, 28, 28)),
    "CNN, 32 and 64 channels": ("cnn", {"channels": [32, 64]}, (1, 28, 28)),
    "ResNet-18": ("resnet18", {"stem": "cifar"}, (3, 32, 32)),
    "ViT, 4 layers of 128": ("vit", {"patch": 8, "dim": 128, "depth": 4, "heads": 4}, (3, 32, 32)),
}
"""Model, its keys, and the shape of an image, by title."""
SECONDS = 1.0
"""Processor time for which each model is trained, at least."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser("python -m bench.arithmetic", description=__doc__)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--here", action="store_true", help="measure this process alone")
    parsed = parser.parse_args()
    if parsed.here:
        print(json.dumps({title: measured(*keys) for title, keys in MODELS.items()}))
        return
    best: dict[str, dict[str, float]] = {arithmetic.NATIVE: {}, arithmetic.PORTABLE: {}}
    for _ in range(parsed.tries):
        for name, shortest in best.items():
            words = [sys.executable, "-m", "bench.arithmetic", "--here"]
            environment = {**os.environ, arithmetic.CHOICE_VARIABLE: name}
            output = subprocess.check_output(words, env=environment, text=True)
            for title, seconds in json.loads(output).items():
                shortest[title] = min(seconds, shortest.get(title, seconds))
    print("| | native, ms | portable, ms | times |\n|---|---:|---:|---:|")
    for title in MODELS:
        native, portable = (1e3 * of_titles[title] for of_titles in best.values())
        print(f"| {title} | {native:.2f} | {portable:.2f} | {portable / native:.2f} |")


def measured(name: str, keys: dict[str, Any], shape: tuple[int, int, int]) -> float:
    """Return the seconds of the processor of a step."""
    import torch

    from fl.base import fields, registry
    from fl.base.errors import Location
    from fl.pytorch import portable

    portable.is_portable()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    target = registry.find("model", name, Location("bench")).target
    network = target(**fields.parse(target, keys, Location("bench"))).build(shape, 10)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    x, y = torch.rand(32, *shape), torch.randint(10, (32,))

    def train(steps: int) -> float:
        begin = time.process_time()
        for _ in range(steps):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
        return time.process_time() - begin

    train(3)
    steps = 1
    while (seconds := train(steps)) < SECONDS:
        steps *= 2
    return seconds / steps


if __name__ == "__main__":
    arithmetic.choose()
    main()
