"""Import of large modules without garbage collection.

These imports make some hundred thousand objects, which stay until the process ends. The garbage
collector would scan all of them several times, and once more during training, where it takes as
long as tens of steps of a small model.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Context for imports without collection; objects that exist at its end are never scanned."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
