"""Settings of a process that trains: threads, memory, and PyTorch's compiler.

Of the compiler, the folder of its programs is set, and its log messages; of GPUs, how they round.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shlex
import shutil
import stat
import tempfile
import warnings
from functools import cache
from pathlib import Path

import torch

from fl.base import plugins
from fl.base.arithmetic import PORTABLE
from fl.base.errors import Location
from fl.plan.bundle import Bundle
from fl.pytorch import portable
from fl.pytorch.memory import keep_freed_memory
from fl.store.store import Store

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


def prepare_process(bundle: Bundle, store: Store) -> None:
    """Apply the settings of a bundle to this process.

    Args:
        bundle: The bundle.
        store: The store; compiled programs are kept beside it.
    """
    plugins.use(bundle.plugins, Location(f"bundle {bundle.bundle}") / "plugins")
    is_portable = bundle.arithmetic == PORTABLE and portable.is_portable()
    # Several threads add in another order, so portable runs take one.
    torch.set_num_threads(1 if is_portable else bundle.execution.threads)
    keep_freed_memory()
    keep_programs(store.root)
    silence_compiler()
    if torch.cuda.is_available():  # These settings have no use on a CPU, and cost a second.
        prepare_gpu()


def prepare_gpu() -> None:
    """Let GPUs give the same numbers each time, and compute with 32 bits what is `float32`.

    By default cuDNN rounds the inputs of convolutions to TF32, which has 10 of the 23 bits of a
    `float32`'s mantissa. This must come before the first product of matrices.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.allow_tf32 = False


def keep_programs(store: Path) -> None:
    """Keep programs in the folder ``compiled`` beside the store, so that later jobs load them.

    Because jobs run these programs, the folder must belong to the user, and nobody else may enter
    it, and the C++ compiler must take its path, which PyTorch does not quote. Otherwise programs
    are kept only as long as this process runs. The folder may be deleted at any time.

    Args:
        store: Folder of the store.
    """
    if USER_FOLDER:
        return
    folder = store.resolve().parent / "compiled"
    is_plain = shlex.quote(str(folder)) == str(folder)
    if is_plain:
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_plain or not _is_private(folder):
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
