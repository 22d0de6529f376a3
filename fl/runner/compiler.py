"""Where PyTorch's compiler keeps its programs, and that it is silent in the log of a training."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import stat
import tempfile
import warnings
from functools import cache
from pathlib import Path

FOLDER = "TORCHINDUCTOR_CACHE_DIR"
USERS = os.environ.get(FOLDER)
"""The user's own folder comes first."""

PACKAGES = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch._export", "torch.fx")


def keep_beside(store: Path) -> None:
    """Keep programs in ``compiled`` beside the store: later jobs load and run them. So the folder
    must be the user's own, and nobody else may enter it, whatever the modes of what lies in it;
    else programs last as long as this process. It may be deleted.
    """
    if USERS:
        return
    folder = store.resolve().parent / "compiled"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _private(folder):
        folder = _temporary()
    os.environ[FOLDER] = str(folder)


@cache
def _temporary() -> Path:
    folder = tempfile.mkdtemp(prefix="fedloom-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _private(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return mine and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)


def silence() -> None:
    """Let the compiler log errors alone, and warn of nothing."""
    for name in PACKAGES:
        logging.getLogger(name).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module=name.replace(".", r"\."))
