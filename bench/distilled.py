"""A picture of what distillation makes of images: ``python -m bench.distilled RESULTS STUDY FILE``.

Of the lowest seed of a study like `fedlgd-digits-domains`, whose runs are in the folder RESULTS. A
row for each client, with real images of five classes, what its virtual images begin as, what the
warm-up makes of them, and what FedLGD's refreshes leave at last; below what the server begins with,
and its images at last. Run it where the study was planned.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fl.api.method import Pass
from fl.base.schema import PERSONAL
from fl.engine import simulate
from fl.engine.simulate import Simulation
from fl.plan import plan_files, specs
from fl.store.store import Store

CLASSES = slice(0, 10, 2)
SCALE, GAP, WHITE = 3, 6, 255


def simulated(results: Path, run: dict[str, Any]) -> Simulation:
    """The run's simulation."""
    bundle = plan_files.bundle(results / "plan", run["bundle"])
    return specs.assemble(bundle.runs[0].spec, bundle.folders, torch.device("cpu"))


def begun(warmup: Simulation) -> Tensor:
    """What clients' virtual images begin as, [clients, images, ...]."""
    parts = tuple(
        replace(part, sampling=replace(part.sampling, steps=lambda round_: 0))
        for part in warmup.method.passes
        if isinstance(part, Pass)
    )
    training = replace(warmup.training, rounds=1)
    still = replace(warmup, method=replace(warmup.method, passes=parts), training=training)
    [done] = simulate.rounds(still, still.begin(), 0, "loop")
    found: Tensor = done.state.clients["images"]
    return found


def real(simulation: Simulation, client: int) -> Tensor:
    """The first training image of every class."""
    held = torch.from_numpy(simulation.held.samples["train"][client])
    y = simulation.arrays.labels(held)
    first = [int((y == label).nonzero()[0]) for label in range(simulation.classes)]
    return simulation.arrays.inputs(held[first])


def line(simulation: Simulation, blocks: list[Tensor | None]) -> np.ndarray:
    """One row of the picture: blocks of images, or of nothing, [height, width, 3]."""
    parts = []
    for block in blocks:
        shape = (len(range(*CLASSES.indices(simulation.classes))), *simulation.arrays.shape)
        pixels = torch.ones(shape) if block is None else simulation.arrays.pixels(block[CLASSES])
        images = pixels.clamp(0, 1).expand(-1, 3, -1, -1).permute(2, 0, 3, 1).flatten(1, 2)
        whole = (255 * np.asarray(images)).round().astype(np.uint8)
        whole = whole.repeat(SCALE, 0).repeat(SCALE, 1)
        parts.append(np.pad(whole, ((0, GAP), (0, GAP), (0, 0)), constant_values=WHITE))
    return np.concatenate(parts, 1)


def main() -> None:
    """Write the picture."""
    results, study, file = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    runs = json.loads((results / "plan" / "studies" / f"{study}.json").read_text())["runs"]
    lowest = {run["method"]: run for run in sorted(runs, key=lambda run: -run["seed"])}
    store, warm, own = Store(results / "runs"), lowest["warm-up"], lowest["fedlgd"]
    simulation = simulated(results, warm)
    each = simulation.classes
    start = begun(simulation)
    warmed = store.weights(warm["run"])[PERSONAL]["images"]
    traces = store.traces(own["run"])
    server = simulated(results, own).begin().server["images"]

    def first(images: Tensor) -> Tensor:
        return images.unflatten(0, (each, -1))[:, 0]

    rows = [
        line(
            simulation,
            [real(simulation, k), first(start[k]), first(warmed[k]), first(traces["local"][-1][k])],
        )
        for k in range(len(start))
    ]
    rows.append(line(simulation, [None, first(server), None, first(traces["global"][-1])]))
    picture = Image.fromarray(np.concatenate(rows)).quantize(96, dither=Image.Dither.NONE)
    picture.save(file, optimize=True)
    print(f"{file}: {picture.width} x {picture.height}, {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
