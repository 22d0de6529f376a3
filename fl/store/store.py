"""The store of runs: one folder per identity, complete or absent.

::

    root/<run>/           run.json (sealed), metrics.parquet, final.safetensors (if asked for),
                          predictions.parquet (likewise), traces.safetensors (if the method has
                          traces)
    root/<run>.partial/   checkpoint/, lease.json, attempt-N.json (see `fl.store.attempts`), and
                          while it finishes result-*/

A run is finished in ``<run>.partial/result-*/``, forced to the disk and renamed to ``<run>``; only
then are the checkpoints removed, and after them the lease. A kill before the rename leaves the
checkpoints; a kill after it leaves a finished run and leftovers that the next `Store.open` removes.

A finished run is never replaced: if two processes both believe that they hold it (see
`fl.store.lease`), it is computed twice and the first rename wins. A run without final weights or
predictions gets them added: its record first, then the files. A kill between leaves the run as it
was for all who need none of them; they count as lacking until the file is there.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fl.base import files, parquet
from fl.base.errors import DataError, FedloomError
from fl.store import attempts, lease
from fl.store.attempts import Attempt
from fl.store.layout import (
    CHECKPOINTS,
    LEASE,
    METRICS,
    ON_DEMAND,
    PREDICTIONS,
    RECORD,
    TRACES,
    WEIGHTS,
    is_name,
)
from fl.store.workspace import Workspace, erase

if TYPE_CHECKING:
    import pandas as pd
    import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Store:
    """Runs below ``root``.

    Attributes:
        beat: Seconds after which a holder touches its lease.
        patience: Seconds without a touch after which a waiter replaces a holder of which it cannot
            tell whether it is alive.
    """

    root: Path
    beat: float = 5.0
    patience: float = 60.0

    def has(self, run: str, keep: Collection[str] = ()) -> bool:
        """Whether the run is finished and has these files; they are not checked."""
        return all(files.is_file(self._folder(run) / name) for name in (RECORD, *keep))

    def has_weights(self, run: str) -> bool:
        """Whether the run is finished and its final weights are kept."""
        return self.has(run, (WEIGHTS,))

    def runs(self) -> list[str]:
        """The finished runs, sorted."""
        return [name for name in self._names("") if self.has(name)]

    def unfinished(self) -> list[str]:
        """The runs that are being computed, or were and are not finished; sorted."""
        return [name for name in self._names(".partial") if not self.has(name)]

    def _names(self, ending: str) -> list[str]:
        """The runs of which there is a folder whose name ends so, sorted."""
        if not self.root.exists():
            return []
        with files.disk_errors(self.root):
            folders = [path.name for path in self.root.iterdir() if files.is_folder(path)]
        names = [name.removesuffix(ending) for name in folders if name.endswith(ending)]
        return sorted(name for name in names if is_name(name))

    def round(self, run: str) -> int | None:
        """The round of an unfinished run's newest checkpoint, by the checkpoint's name; None
        without one.
        """
        try:
            names = [path.name for path in (self.partial(run) / CHECKPOINTS).iterdir()]
        except OSError:
            return None
        return max((int(n[6:]) for n in names if re.fullmatch(r"round-\d+", n)), default=None)

    def holder(self, run: str) -> str | None:
        """The live process that computes a run, in words; None where there is none."""
        return lease.living(self.partial(run) / LEASE, self.patience)

    def attempts(self, run: str) -> list[Attempt]:
        """The attempts at an unfinished run, oldest first."""
        return attempts.read(self.partial(run))

    def record(self, run: str) -> dict[str, Any]:
        """The record given to `Workspace.finish`, with the sizes and hashes of the ``files``."""
        return self._read(run, RECORD, lambda path, record: record)

    def metrics(self, run: str) -> pd.DataFrame:
        """The run's rows, checked against their hash."""
        return self._read(run, METRICS, lambda path, _: parquet.read(path)[0])

    def weights(self, run: str, device: str | torch.device = "cpu") -> dict[str, Any]:
        """The run's final weights, a tree of tensors on ``device``, checked against their hash."""
        from fl.store.tree_file import load_tree

        return self._read(run, WEIGHTS, lambda path, _: load_tree(path, device))

    def predictions(self, run: str) -> pd.DataFrame:
        """What its final models predict, checked against their hash; see
        `fl.engine.predictions.final_predictions`.
        """
        return self._read(run, PREDICTIONS, lambda path, _: parquet.read(path)[0])

    def traces(self, run: str) -> dict[str, torch.Tensor]:
        """What the run's method recorded of every evaluated round, checked against its hash.

        Returns:
            By name a tensor [rounds evaluated, ...], and ``round``, int64 [rounds evaluated]; empty
            if the method records nothing.
        """
        if TRACES not in self.record(run)["files"]:
            return {}
        from fl.store.tree_file import load_tree

        return self._read(run, TRACES, lambda path, _: load_tree(path))

    def place(self, run: str) -> Path:
        """The folder of a run: that of the finished run, or else that of the unfinished one."""
        return self._folder(run) if self.has(run) else self.partial(run)

    def partial(self, run: str) -> Path:
        """Where a run is until it is finished."""
        return self.root / f"{_checked(run)}.partial"

    def verify(self, run: str) -> list[str]:
        """What is wrong with a finished run, one line each; empty if it is whole."""
        folder = self._folder(run)
        if not self.has(run):
            return [f"{folder}: there is no such finished run"]
        try:
            with files.disk_errors(folder):
                described = files.read_sealed(folder / RECORD)["files"]
                damages = [
                    files.find_damage(folder / name, entry) for name, entry in described.items()
                ]
        except FedloomError as error:
            return [str(error)]
        return [damage for damage in damages if damage]

    def remove(self, run: str, still: Callable[[], object] = lambda: True) -> None:
        """Remove a run, finished or not.

        Args:
            still: Asked when no other process can be working on the run; if false, the run stays.

        Raises:
            FedloomError: If a process is computing the run.
        """
        partial = self.partial(run)
        with files.disk_errors(partial):
            taken = lease.take(partial / LEASE, lambda: False, self.beat, self.patience, wait=False)
            if taken is None:
                raise FedloomError(
                    f"{partial}: {lease.holder(partial / LEASE) or 'another process'} is computing "
                    f"this run; stop it first (one on another host that has died is given up after "
                    f"{self.patience:g} s by training the run again)"
                )
            try:
                if still():
                    files.erase(self._folder(run))
                    erase(partial, taken)
            finally:
                taken.release()
                with contextlib.suppress(OSError):
                    partial.rmdir()

    @contextlib.contextmanager
    def open(
        self,
        run: str,
        keep: Collection[str] = (),
        waiting: Callable[[], None] = lambda: None,
        wait: bool = True,
    ) -> Iterator[Workspace | None]:
        """A context with the place to compute ``run`` in, held by this process alone.

        At the end the lease is released; an unfinished run stays for the next process.

        Args:
            keep: A run without these files counts as unfinished.
            waiting: Called while another process computes the run.
            wait: If false, do not wait for another process.

        Yields:
            None if the run is finished, already or by the process that was waited for, and, without
            ``wait``, if another live process computes it.
        """
        partial, folder = self.partial(run), self._folder(run)
        if folder.exists() and not os.access(folder, os.R_OK | os.X_OK):
            # It may be finished, and is not to be replaced.
            raise FedloomError(f"{folder}: permission denied; ask its owner to share it")

        def over() -> bool:
            waiting()
            return self.has(run, keep)

        with files.disk_errors(partial):
            taken = lease.take(partial / LEASE, over, self.beat, self.patience, wait)
        if taken is not None and self.has(run, keep):  # Finished between the look and the lease.
            erase(partial, taken)
            taken = None
        if taken is None:
            self._sweep(run)
            yield None
            return
        try:
            with files.disk_errors(partial):
                _clear(partial)
            yield Workspace(self, run, taken)
        finally:
            taken.release()
            with contextlib.suppress(OSError):
                partial.rmdir()  # Only if there is nothing to come back to.

    def publish(self, run: str, result: Path) -> bool:
        """Rename a complete result to its final name; if the run is there, add the files that it
        lacks. False if there is nothing to add.
        """
        final = self._folder(run)
        if not self.has(run) and final.exists():
            files.move(final, result.parent / f"removed-{secrets.token_hex(8)}")
        if files.move(result, final):
            return True
        made = files.read_sealed(result / RECORD)["files"]
        added = [name for name in ON_DEMAND if name in made and not self.has(run, (name,))]
        if not added:
            return False
        record = files.read_sealed(final / RECORD)
        described = record.pop("files") | {name: made[name] for name in added}
        files.write_described(final / RECORD, record, described)
        for name in added:
            (result / name).replace(final / name)
        files.sync_folder(final)
        return True

    def _folder(self, run: str) -> Path:
        """Where a finished run is."""
        return self.root / _checked(run)

    def _read(self, run: str, name: str, read: Callable[[Path, dict[str, Any]], T]) -> T:
        """Read one file of a finished run after checking it; `DataError` says what to do."""
        path = self._folder(run) / name
        if not self.has(run):
            raise DataError(f"{path.parent}: there is no such finished run; train it first")
        try:
            with files.disk_errors(path):
                record = files.read_sealed(path.parent / RECORD)
                if name != RECORD:
                    if name not in record["files"]:
                        raise DataError(f"{path}: was not kept when the run was finished")
                    if problem := files.find_damage(path, record["files"][name]):
                        raise DataError(problem)
                return read(path, record)
        except DataError as error:
            remedy = "`fedloom store verify --remove`, and train it again"
            raise DataError(f"{error}; {remedy}") from error

    def _sweep(self, run: str) -> None:
        """Remove leftovers beside a finished run, if there are any and no process works on it."""
        partial = self.partial(run)
        # Checkpoints beside a run without weights are of a run with weights that was interrupted.
        wanted = (partial / CHECKPOINTS).exists() and not self.has_weights(run)
        if wanted or not partial.exists():
            return
        with contextlib.suppress(OSError):
            taken = lease.take(partial / LEASE, lambda: False, self.beat, self.patience, wait=False)
            if taken is not None:
                erase(partial, taken)


def _clear(partial: Path) -> None:
    """Remove what a killed process left beside its checkpoints."""
    for path in partial.iterdir():
        if path.is_dir() and path.name != CHECKPOINTS:
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.endswith(".tmp"):
            path.unlink(missing_ok=True)


def _checked(run: str) -> str:
    if not is_name(run):
        raise ValueError(f"{run!r} is not the name of a run: letters, digits, '-' and '_'")
    return run
