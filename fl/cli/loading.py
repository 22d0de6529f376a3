"""Loading modules that stay until the process ends.

They make some hundred thousand objects. While these are made the garbage collector goes through all
of them several times, and once more at some moment of training, for as long as tens of steps of a
small model; it finds nothing.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """A context for imports: nothing is collected in it, and what is there at its end never is."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
