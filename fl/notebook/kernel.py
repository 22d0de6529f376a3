"""Check that code was not edited after this process imported it.

A run's name depends on the code on the disk, its results on the imported code. Each command imports
the code again, but a notebook's kernel lives for days.
"""

from __future__ import annotations

import os
from pathlib import Path

from fl.base import plugins
from fl.base.errors import FedloomError

_first_states: dict[Path, tuple[int, int]] = {}
"""Time of change and size of each file at the first check."""


def check_unedited() -> None:
    """Refuse to train if a file of Fedloom or of a plugin has changed.

    Raises:
        FedloomError: If a file has changed.
    """
    for root in plugins.roots().values():
        for path in root.rglob("*.py"):
            stat = path.stat()
            state = stat.st_mtime_ns, stat.st_size
            if _first_states.setdefault(path, state) != state:
                raise FedloomError(
                    f"{os.path.relpath(path)}: was edited after this Python process imported it",
                    advice="restart Python (in a notebook: restart the kernel)",
                )
