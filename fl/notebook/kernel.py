"""Code that was edited after this process had imported it.

A run is named by the code that lies on the disk, and computed by the code that was imported. A
command begins anew each time; a notebook's kernel lives for days.
"""

from __future__ import annotations

import os
from pathlib import Path

from fl.base import plugins
from fl.base.errors import FedloomError

_seen: dict[Path, tuple[int, int]] = {}
"""By file, its time of change and its size when it was first looked at."""


def check_unedited() -> None:
    """Refuse (`FedloomError`) to train where a file of Fedloom or of a plugin has changed."""
    for root in plugins.roots().values():
        for path in root.rglob("*.py"):
            stat = path.stat()
            now = stat.st_mtime_ns, stat.st_size
            if _seen.setdefault(path, now) != now:
                raise FedloomError(
                    f"{os.path.relpath(path)}: was edited after this Python process had begun to "
                    "use it; restart it (in a notebook: restart the kernel)"
                )
