"""Exceptions in one line of text; for code of a plugin, with file and line."""

from __future__ import annotations

import os
import traceback

from fl.base import plugins

VMAP_MESSAGE = "vmap: It looks like you're"
"""First words of PyTorch's message if a tensor in a stack is converted to a Python number."""
STACK_ADVICE = "this is impossible in a stack of clients; try `execution: {backend: loop}`"


def describe(error: BaseException) -> str:
    """Return an exception in one line: ``lab/methods/mine.py, line 30: KeyError: 'x'``.

    File and line are given for code of plugins only; the innermost one counts.
    """
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if str(error).startswith(VMAP_MESSAGE):
        text = f"{text.rstrip('.')}; {STACK_ADVICE}"
    line = plugin_line(error)
    return f"{line}: {text}" if line else text


def plugin_line(error: BaseException) -> str:
    """Return the line of a plugin that raised an error, ``lab/a.py, line 30``; empty if none."""
    folders = [f"{root}{os.sep}" for root in plugins.roots().values() if root != plugins.FL]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(tuple(folders)):
            return f"{os.path.relpath(frame.filename)}, line {frame.lineno}"
    return ""
