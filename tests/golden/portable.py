"""Bits of runs with portable arithmetic, which have a version of their own.

A certified version allows other last digits, which processors give as well. Portable runs promise
every bit: if one of these worlds has other bits, the version of `ROOT` rises.
"""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fl.base import arithmetic, identity

ROOT = f"training.arithmetic={arithmetic.PORTABLE}"
"""Option of a run whose version is part of its name (`fl.base.identity.versioned_options`)."""

KEPT = Path(__file__).with_name("portable.json")
PROGRAM = Path(__file__).resolve().parents[1] / "helpers" / "portable_worlds.py"
METHODS = (
    *("fedavg", "ditto", "scaffold", "fedavgm", "fedsam", "fedopt", "feddyn", "fedprox", "moon"),
    *("apfl", "fedrep", "fedbn", "fedala", "fedproto", "fedsac", "pfedme", "ifca", "knn-per"),
)
WORLDS = (
    *(f"method {method}: plain" for method in METHODS),
    *("method fedfa: images", "method fedl2p: images"),
    *("method fedavg: images", "method fedavg: targets", "method fedavg: masks"),
    *("model lstm: 0", "model text-transformer: 0", "model resnet18: 0", "model vit: 0"),
    *("core: adamw", "core: unseen", "core: tested on both", "core: crop and flip"),
    *("term mk-mmd: 0 fedavg numbers", "scheme dirichlet: 0", "scheme client-dirichlet: 0"),
    *("data synthetic: 0", "data digits-domains: 0", "study"),
)
ATTEMPTS = 4
"""Calls of an emulator, which sometimes crashes; each goes on where the last one ended."""


def measured(path: Path, *emulator: str) -> dict[str, str]:
    """The hash of each world's numbers on this processor or on an emulated one.

    Args:
        path: File of the results.
        emulator: Words before the command.
    """
    environment = {key: text for key, text in os.environ.items() if not key.startswith("PYTHON")}
    # By the path of Python itself: the emulator follows no link of a virtual environment.
    environment["PYTHONPATH"] = os.pathsep.join(site.getsitepackages())
    words = [*emulator, os.path.realpath(sys.executable), str(PROGRAM), str(path), *WORLDS]
    for _ in range(ATTEMPTS if emulator else 1):
        done = subprocess.run(words, env=environment, stderr=subprocess.PIPE, text=True)
        if done.returncode >= 0:
            break
    assert done.returncode == 0, done.stderr
    return read(path)


def read(path: Path) -> dict[str, str]:
    """The hashes in a file of `measured`."""
    return dict(map(json.loads, path.read_text().splitlines()))


def libraries() -> dict[str, str]:
    """Versions of the libraries that decide bits."""
    return {name: metadata.version(name).partition("+")[0] for name in arithmetic.LIBRARIES}


def load() -> Mapping[str, Any]:
    """The bits of the version: ``libraries``, ``version``, and ``hashes`` by world."""
    content: Mapping[str, Any] = json.loads(KEPT.read_text())
    return content


def is_comparable(kept: Mapping[str, Any]) -> bool:
    """Whether this machine can give the bits that are kept."""
    return arithmetic.can_be_portable() and kept["libraries"] == libraries()


def certified() -> set[str]:
    """Measure the worlds and keep their hashes; return `ROOT` if one of them has other bits."""
    kept = load()
    if not is_comparable(kept):
        print(f"portable bits: not compared, as they are of {kept['libraries']}")
        return set()
    with TemporaryDirectory() as folder:
        hashes = measured(Path(folder) / "here")
    differing = [name for name in WORLDS if kept["hashes"].get(name) != hashes[name]]
    version = identity.read_certified().versions.get(ROOT, 1) + bool(differing)
    content = {"libraries": libraries(), "version": version, "hashes": hashes}
    KEPT.write_text(json.dumps(content, indent=0) + "\n")
    print(f"portable bits: {len(differing)} of {len(WORLDS)} worlds have other ones")
    return {ROOT} if differing else set()
