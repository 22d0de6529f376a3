"""The same bits on other processors, which an emulator stands for (``make portable``).

Beside the processor at hand: Intel's Haswell, and AMD's EPYC Rome, by qemu-user. It emulates no
AVX-512; whether that changes a bit is seen where this processor has it. FedLGD is missing, because
qemu 7.2 computes PyTorch's `grid_sample` wrongly, by half of an image's range.
"""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

from fl.base import arithmetic

EMULATOR = shutil.which("qemu-x86_64")
PROGRAM = Path(__file__).resolve().parents[1] / "helpers" / "portable_worlds.py"
PROCESSORS = ("Haswell", "EPYC-Rome")
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
"""Calls of the emulator, which sometimes crashes; each goes on where the last one ended."""

pytestmark = [
    pytest.mark.skipif(EMULATOR is None, reason="needs qemu-user"),
    pytest.mark.skipif(not arithmetic.can_be_portable(), reason="needs an x86-64 processor"),
]


def numbers(path: Path, *emulator: str) -> dict[str, str]:
    """The hash of each world's numbers, by this processor or by an emulated one."""
    environment = {key: text for key, text in os.environ.items() if not key.startswith("PYTHON")}
    # By the path of Python itself: the emulator follows no link of a virtual environment.
    environment["PYTHONPATH"] = os.pathsep.join(site.getsitepackages())
    words = [*emulator, os.path.realpath(sys.executable), str(PROGRAM), str(path), *WORLDS]
    for _ in range(ATTEMPTS if emulator else 1):
        done = subprocess.run(words, env=environment, stderr=subprocess.PIPE, text=True)
        if done.returncode >= 0:
            break
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, path.read_text().splitlines()))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return numbers(tmp_path_factory.mktemp("portable") / "here")


@pytest.mark.parametrize("processor", PROCESSORS)
def test_all_processors_compute_the_same_bits(
    processor: str, here: dict[str, str], tmp_path: Path
) -> None:
    assert EMULATOR is not None
    emulated = numbers(tmp_path / "emulated", EMULATOR, "-cpu", processor)
    assert emulated == here
