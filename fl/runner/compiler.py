"""Settings of PyTorch's compiler: the folder of its programs, and its log messages."""

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

FOLDER_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
USER_FOLDER = os.environ.get(FOLDER_VARIABLE)
"""A folder that the user has set has priority."""

COMPILER_PACKAGES = (
    "torch._dynamo",
    "torch._inductor",
    "torch._functorch",
    "torch._export",
    "torch.fx",
)


def keep_programs(store: Path) -> None:
    """Keep programs in the folder ``compiled`` beside the store, so that later jobs load them.

    Because jobs run these programs, the folder must belong to the user, and nobody else may enter
    it. If it does not, programs are kept only as long as this process runs. The folder may be
    deleted at any time.

    Args:
        store: Folder of the store.
    """
    if USER_FOLDER:
        return
    folder = store.resolve().parent / "compiled"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_private(folder):
        folder = _temporary_folder()
    os.environ[FOLDER_VARIABLE] = str(folder)


@cache
def _temporary_folder() -> Path:
    """Make a folder that is deleted when this process ends."""
    folder = tempfile.mkdtemp(prefix="fedloom-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _is_private(folder: Path) -> bool:
    """Whether only this user may enter a folder."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_own_folder = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return is_own_folder and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)


def silence_compiler() -> None:
    """Let the compiler log only errors, and no warnings."""
    for name in COMPILER_PACKAGES:
        logging.getLogger(name).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module=name.replace(".", r"\."))
