"""Compiled programs: where they are kept, that no two jobs compile one, and what compilers say.

They lie in the folder ``compiled`` beside the store, unless ``TORCHINDUCTOR_CACHE_DIR`` names
another one. Jobs load and run what is in it, so it must belong to whoever runs them. It may be
deleted, as programs are compiled again.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"

COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch._export", "torch.fx")
"""Loggers of `torch.compile`, and the packages whose warnings are its own."""

logger = logging.getLogger(__name__)
_given: dict[str, str] = {}


def keep_beside(store: Path) -> Path | None:
    """Where programs are kept from now on; None if nowhere that is safe can be named.

    What the user's environment says comes first.
    """
    said = os.environ.get(VARIABLE)
    if said and said != _given.get(VARIABLE):
        return Path(said)
    folder = store.resolve().parent / "compiled"
    if _foreign(folder):
        os.environ.pop(VARIABLE, None)
        return None
    _given[VARIABLE] = os.environ[VARIABLE] = str(folder)
    return folder


def _foreign(folder: Path) -> bool:
    """Whether somebody else could have put programs there."""
    try:
        return folder.stat().st_uid != os.geteuid()
    except OSError:  # Not there yet.
        return False


@contextlib.contextmanager
def once(program: str | None, waiting: Callable[[], None], pause: float = 0.5) -> Iterator[bool]:
    """A context in which to compile a program; another job that would, waits for its end.

    Args:
        program: Its name; None if it has none, and nobody waits.

    Yields:
        Whether nobody has compiled it; if not, it is loaded from where programs are kept.
    """
    said = os.environ.get(VARIABLE)
    if said is None or program is None:
        yield True
        return
    ready, lock = Path(said) / f"{program}.ready", Path(said) / f"{program}.lock"
    with contextlib.ExitStack() as held:
        while not ready.exists() and not _taken(lock, held):
            logger.info("another job compiles the same program; waiting")
            while not ready.exists() and not _taken(lock, held):
                waiting()
                time.sleep(pause)
        first = not ready.exists()
        yield first
        if first:
            with contextlib.suppress(OSError):
                ready.touch()


def _taken(lock: Path, held: contextlib.ExitStack) -> bool:
    """Whether the lock is ours now, or nobody can have it (a file system without locks)."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        held.enter_context(file)
    except OSError:
        return True
    return True


class _Apart(logging.FileHandler):
    """A log whose folder is made with its first line."""

    def _open(self) -> Any:
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        return super()._open()


@contextlib.contextmanager
def apart(results: Path, name: str) -> Iterator[None]:
    """A context in which what compilers say goes to ``<results>/logs/compiler/<name>.log`` and not
    into the log of a training.
    """
    handler = _Apart(results / "logs" / "compiler" / f"{name}.log", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in COMPILERS]
    before = [(one.propagate, list(one.handlers)) for one in loggers]
    shown = warnings.showwarning

    def show(message: Any, category: Any, filename: str, lineno: int, *rest: Any) -> None:
        if any(f"{name.replace('.', os.sep)}{os.sep}" in filename for name in COMPILERS):
            loggers[0].warning("%s:%s: %s", filename, lineno, message)
        else:
            shown(message, category, filename, lineno, *rest)

    for one in loggers:
        one.propagate, one.handlers = False, [handler]
    warnings.showwarning = show  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = shown
        for one, (propagate, handlers) in zip(loggers, before, strict=True):
            one.propagate, one.handlers = propagate, handlers
        handler.close()
