"""How every benchmark begins: as training does, on one thread, and with a line that says where."""

from __future__ import annotations

import platform

import torch

from fl.pytorch import allocator


def begin(what: str = "", device: str = "cpu") -> str:
    """`quiet`; prints the machine and ``what`` is measured, and returns that line."""
    quiet()
    where = platform.processor() or platform.machine()
    if device == "cuda":
        where = torch.cuda.get_device_name()
    line = f"torch {torch.__version__}, {where}, one thread{what and '; '}{what}"
    print(f"{line}\n", flush=True)
    return line


def quiet() -> None:
    """One thread, and freed memory kept."""
    torch.set_num_threads(1)
    allocator.keep()
