"""Functions that a process of another arithmetic calls for a test."""

from __future__ import annotations

import os
import signal
from typing import Any


def shout(text: str, bar: Any) -> int:
    """Tell the bar and standard output a text, and return the number of the process."""
    bar.describe(text)
    print(text)
    return os.getpid()


def fail(bar: Any) -> None:
    """Raise an error that no pickle holds."""

    class LocalError(Exception):
        pass

    raise LocalError("on purpose")


def end(bar: Any) -> None:
    """End the process."""
    os.kill(os.getpid(), signal.SIGKILL)
