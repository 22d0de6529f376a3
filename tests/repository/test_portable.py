"""The same bits on other processors, which an emulator stands for (``make portable``).

Beside the processor at hand: Intel's Haswell, and AMD's EPYC Rome, by qemu-user. It emulates no
AVX-512; whether that changes a bit is seen where this processor has it. FedLGD is missing, because
qemu 7.2 computes PyTorch's `grid_sample` wrongly, by half of an image's range.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from golden import portable

from fl.base import arithmetic, identity

EMULATOR = shutil.which("qemu-x86_64")
PROCESSORS = ("Haswell", "EPYC-Rome")

pytestmark = pytest.mark.skipif(
    not arithmetic.can_be_portable(), reason="needs an x86-64 processor"
)


@pytest.fixture(scope="module")
def here(once: Callable[..., Path]) -> dict[str, str]:
    return portable.read(once("portable", portable.measured))


def test_bits_are_those_of_their_version(here: dict[str, str]) -> None:
    """Where this fails, `make golden` raises the version, so that runs have other names."""
    kept = portable.load()
    if not portable.is_comparable(kept):
        pytest.skip(f"kept for {kept['libraries']}")
    assert kept["version"] == identity.read_certified().versions[portable.ROOT]
    assert here == kept["hashes"]


@pytest.mark.emulator
@pytest.mark.skipif(EMULATOR is None, reason="needs qemu-user")
@pytest.mark.parametrize("processor", PROCESSORS)
def test_all_processors_compute_the_same_bits(
    processor: str, here: dict[str, str], tmp_path: Path
) -> None:
    assert EMULATOR is not None
    emulated = portable.measured(tmp_path / "emulated", EMULATOR, "-cpu", processor)
    assert emulated == here
