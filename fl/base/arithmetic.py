"""Arithmetic of a process: `PORTABLE`, with the same bits on all x86-64 processors, or `NATIVE`.

Libraries choose their instructions by the processor, and so the last bits of their results. Hold
them to the instructions that all processors since 2013 have (AVX2 and FMA), and the bits are equal,
on AMD and Intel alike. The choice is made by variables of the environment, which a library reads
when it is imported or first used. So a process chooses once, before it imports any of them.

The same was found for neuroimaging by FastSurfer (github.com/Deep-MI/FastSurfer, pull request 892),
from which three of the variables are known.
"""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from pathlib import Path

from fl.base.errors import FedloomError
from fl.base.specs import Spec

PORTABLE, NATIVE = "portable", "native"

CHOICE_VARIABLE = "FEDLOOM_ARITHMETIC"
"""Environment variable with the arithmetic of a process; `PORTABLE` if it is not set."""

NUMPY_FEATURES = (
    *("X86_V3", "X86_V4", "AVX512_ICL", "AVX512_SPR"),
    # Names before NumPy 2.4.
    *("AVX2", "FMA3", "AVX512F", "AVX512CD", "AVX512_SKX", "AVX512_CLX", "AVX512_CNL"),
)
"""Instructions that NumPy leaves unused; it ignores names that it does not know."""

VARIABLES = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    # With AVX2 in place of COMPATIBLE, AMD and Intel differ.
    "MKL_CBWR": "COMPATIBLE",
    "NPY_DISABLE_CPU_FEATURES": " ".join(NUMPY_FEATURES),
    "OPENBLAS_CORETYPE": "Haswell",
    # Several threads add in another order.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
"""Environment variables of portable arithmetic, for PyTorch, oneDNN, MKL, NumPy and OpenBLAS."""

HASH_SEED = {"PYTHONHASHSEED": "0"}
"""Environment variable by which the order of a set of texts is the same in started processes."""

LIBRARIES = ("numpy", "torch")

_choice = ""
_is_program = False


def choose(is_program: bool = False) -> None:
    """Choose the arithmetic of this process by `CHOICE_VARIABLE`; too late after an import.

    Args:
        is_program: Whether the process is a command of Fedloom, which may `restart`.
    """
    global _choice, _is_program
    _is_program = is_program
    if any(name in sys.modules for name in LIBRARIES):
        return
    if os.environ.get(CHOICE_VARIABLE, PORTABLE) == PORTABLE and can_be_portable():
        os.environ.update(VARIABLES | HASH_SEED)
        _choice = PORTABLE
    else:
        _choice = NATIVE
        for name, value in VARIABLES.items():
            if os.environ.get(name) == value:
                del os.environ[name]


def current() -> str:
    """Return the arithmetic of this process."""
    return _choice or (PORTABLE if can_be_portable() and _began_portable() else NATIVE)


@cache
def _began_portable() -> bool:
    """Whether this process was started with the environment of portable arithmetic."""
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return {f"{name}={value}".encode() for name, value in VARIABLES.items()} <= {*entries}


@cache
def can_be_portable() -> bool:
    """Whether this processor has the instructions of portable arithmetic."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # Not Linux. Apple's last x86-64 processors have them.
        return True
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return {"avx2", "fma"} <= {*flags}


def of_spec(spec: Spec) -> str:
    """Return the arithmetic of a run by its spec; specs of before the key are of native ones."""
    return str(spec["training"].get("arithmetic", NATIVE))


def is_right(arithmetic: str) -> bool:
    """Whether this process has that arithmetic, as far as its processor can have it."""
    return arithmetic == current() or not can_be_portable()


def restart(arithmetic: str) -> None:
    """Start this program again with another arithmetic, unless it has it already.

    The process keeps its number, so that a scheduler or a shell notices nothing.

    Raises:
        FedloomError: If this process is no command of Fedloom.
    """
    if is_right(arithmetic):
        return
    if _is_program:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment_of(arithmetic))
    problem = f"{CHOICE_VARIABLE}: this process is {current()}, but the runs are {arithmetic}"
    raise FedloomError(problem, advice=f"{CHOICE_VARIABLE}={arithmetic} for a process of its own")


def environment_of(arithmetic: str) -> dict[str, str]:
    """Return the environment of a process with that arithmetic."""
    inherited = {name: value for name, value in os.environ.items() if VARIABLES.get(name) != value}
    return {**inherited, **HASH_SEED, CHOICE_VARIABLE: arithmetic}
