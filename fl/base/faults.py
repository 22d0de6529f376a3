"""What goes wrong in code, in a line; in code of the user's own with its place."""

from __future__ import annotations

import os
import traceback

from fl.base import plugins

NUMBERLESS = "vmap: It looks like you're"
"""How PyTorch's messages begin on a tensor that is taken for a Python number."""
STACKED = "in a stack of clients it has none: `execution: {backend: loop}` trains without one"


def told(error: BaseException) -> str:
    """``lab/methods/mine.py, line 30: KeyError: 'before'``; the place only where it is a plugin's.

    Of several lines of plugins the one that was reached last counts.
    """
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if str(error).startswith(NUMBERLESS):
        text = f"{text.rstrip('.')}; {STACKED}"
    place = own_line(error)
    return f"{place}: {text}" if place else text


def own_line(error: BaseException) -> str:
    """The line of a plugin that an error came from, ``lab/methods/mine.py, line 30``, or ``""``."""
    folders = [f"{root}{os.sep}" for root in plugins.roots().values() if root != plugins.FL]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(tuple(folders)):
            return f"{os.path.relpath(frame.filename)}, line {frame.lineno}"
    return ""
