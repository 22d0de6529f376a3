"""The exact numbers of golden worlds, for a comparison of processors.

``python portable_worlds.py FILE WORLD ...`` writes a line for each world, ``[name, hash]``, and
goes on where an earlier call ended: the emulator of a processor sometimes crashes. The world
`STUDY` is no golden one, but a study from its data to its table.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
STUDY = "study"


def main() -> None:
    """Write the lines."""
    sys.path[:0] = [str(TESTS), str(TESTS / "helpers"), str(TESTS.parent)]
    from fl.base import arithmetic

    arithmetic.choose()

    import torch

    from fl.pytorch import portable

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    assert portable.is_portable()
    path, *names = sys.argv[1:]
    with Path(path).open("a+") as file:
        file.seek(0)
        done = {json.loads(line)[0] for line in file}
        for name in names:
            if name not in done:
                numbers = study() if name == STUDY else world(name)
                file.write(json.dumps([name, numbers]) + "\n")
                file.flush()


def world(name: str) -> str:
    """The hash of all numbers of a golden world; runs compute in single precision."""
    from golden import adapter, measure, worlds

    found = measure.world(name)
    if not found:
        fingerprint = measure.fingerprint(name)
        return digest(fingerprint["text"], *map(float.hex, map(float, fingerprint["numbers"])))
    single = {**found, "training": {**found["training"], "precision": "float32"}}
    table = worlds.table(single)
    rows, weights, traces = adapter.trained(single, worlds.arrays(single["data"], table), table)
    texts = [name, *map(float.hex, map(float, rows["value"]))]
    return digest(*texts, *map(content, (weights, traces)))


def study() -> str:
    """The hash of the tables of a study: real data, a partition, training, evaluation."""
    import pandas as pd

    import fl

    folder = Path.cwd()
    try:
        with tempfile.TemporaryDirectory() as place:
            os.chdir(place)
            result = fl.run(
                dataset="digits",
                partition={"dirichlet": {"clients": 6, "alpha": 0.3}},
                model={"cnn": {"channels": [4, 4]}},
                methods={"fedavg": None, "ditto": None, "fedsam": None},
                rounds=2,
                lr=0.5,
                seeds=1,
                progress=False,
            )
            assert set(result.runs()["arithmetic"]) == {"portable"}
            tables = Path("results", "runs").glob("*/metrics.parquet")
            values = (pd.read_parquet(table)["value"].to_numpy(float) for table in tables)
            # Names of runs, and so their order, depend on what is certified.
            return digest(*sorted(digest(*map(float.hex, run)) for run in values))
    finally:
        os.chdir(folder)


def content(tree: Any) -> str:
    """The hash of the bytes of a tree's tensors, by their names."""
    if isinstance(tree, dict):
        return digest(*(f"{key} {content(tree[key])}" for key in sorted(tree, key=str)))
    return hashlib.sha256(tree.detach().contiguous().cpu().numpy().tobytes()).hexdigest()


def digest(*texts: str) -> str:
    """The hash of texts."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


if __name__ == "__main__":
    main()
