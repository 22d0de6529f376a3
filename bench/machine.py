"""How every benchmark begins: as training does, on one thread, and with a line that says where."""

from __future__ import annotations

import platform

import torch

from fl.train import allocator


def begin(what: str = "", device: str = "cpu") -> None:
    """One thread, and freed memory kept; prints the machine and ``what`` is measured."""
    torch.set_num_threads(1)
    allocator.keep()
    where = platform.processor() or platform.machine()
    if device == "cuda":
        where = torch.cuda.get_device_name()
    print(f"torch {torch.__version__}, {where}, one thread{what and '; '}{what}\n", flush=True)
