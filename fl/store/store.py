"""The store of runs: one folder per identity, complete or absent.

::

    root/<run>/           run.json (sealed), metrics.parquet, final.safetensors (if asked for),
                          predictions.parquet (likewise), traces.safetensors (if the method has
                          traces), state.safetensors and clients.rows (if the state is kept)
    root/<run>.partial/   checkpoint/, lease.json, attempt-N.json (see `fl.store.workspace`),
                          .clients.*.tmp (clients that do not fit into memory, see
                          `fl.base.row_file`), and while it finishes result-*/

A run is finished in ``<run>.partial/result-*/``, written to the disk and renamed to ``<run>``. Then
the checkpoints are removed, and after them the lease. A kill before the rename leaves the
checkpoints; a kill after it leaves a finished run, and files that the next `Store.open` removes.

A finished run is never replaced: if two processes both believe that they hold it (see
`fl.store.lease`), it is computed twice and the first rename wins. If a run needs final weights or
predictions later, they are added: its record first, then the files. After a kill between the two,
the run is as before for everyone who does not need them, and they count as missing.
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

from fl.base import files
from fl.base.errors import DataError, FedloomError
from fl.store import lease, workspace
from fl.store.run_record import (
    CHECKPOINTS,
    CLIENT_ROWS,
    LEASE,
    METRICS,
    OPTIONAL_FILES,
    PREDICTIONS,
    RECORD,
    SAVED_RECORD,
    SAVED_ROWS,
    STATE,
    TRACES,
    WEIGHTS,
    is_name,
)
from fl.store.workspace import Attempt, Workspace, erase

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from fl.api.trees import Tree

T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """Runs that are trained together, as their newest checkpoint has them.

    Attributes:
        round: Number of completed rounds.
        seconds: Seconds of work on all of these runs.
        time: Time of the checkpoint, in seconds since 1970.
        rows: Metrics so far, in the columns of `fl.base.schema.METRIC_COLUMNS`, and ``run``.
    """

    round: int
    seconds: float
    time: float
    rows: pd.DataFrame


@dataclass(frozen=True)
class Store:
    """Store of runs in a folder.

    Attributes:
        root: The folder.
        beat: Seconds between two touches of a lease by its holder.
        patience: Seconds without a touch after which a waiting process replaces a holder that may
            be alive.
    """

    root: Path
    beat: float = 5.0
    patience: float = 60.0

    def has(self, run: str, keep: Collection[str] = ()) -> bool:
        """Whether the run is finished and has these files, without a check of their content."""
        return all(files.is_file(self._folder(run) / name) for name in (RECORD, *keep))

    def has_weights(self, run: str) -> bool:
        """Whether the run is finished and has its final weights."""
        return self.has(run, (WEIGHTS,))

    def runs(self) -> list[str]:
        """Return the finished runs, sorted."""
        return [name for name in self._names("") if self.has(name)]

    def unfinished(self) -> list[str]:
        """Return the runs that have been started and are not finished, sorted."""
        return [name for name in self._names(".partial") if not self.has(name)]

    def _names(self, ending: str) -> list[str]:
        """Return the runs that have a folder with this ending, sorted."""
        if not self.root.exists():
            return []
        with files.disk_errors(self.root):
            folders = [path.name for path in self.root.iterdir() if files.is_folder(path)]
        names = [name.removesuffix(ending) for name in folders if name.endswith(ending)]
        return sorted(name for name in names if is_name(name))

    def round(self, run: str) -> int | None:
        """Return the round of an unfinished run's newest checkpoint; None without a checkpoint."""
        try:
            names = [path.name for path in (self.partial(run) / CHECKPOINTS).iterdir()]
        except OSError:
            return None
        return max((int(n[6:]) for n in names if re.fullmatch(r"round-\d+", n)), default=None)

    def progress(self, run: str) -> Progress | None:
        """Return what an unfinished run's newest checkpoint says, without its state.

        Returns:
            None without a checkpoint, or if it is replaced in this moment.
        """
        folder = self.partial(run) / CHECKPOINTS / f"round-{self.round(run) or 0:06d}"
        try:
            record = files.read_sealed(folder / SAVED_RECORD)
            rows = files.read_parquet(folder / SAVED_ROWS)[0]
            time = (folder / SAVED_RECORD).stat().st_mtime
            return Progress(record["round"], record["extra"]["seconds"], time, rows)
        except (OSError, DataError, LookupError):
            return None

    def holder(self, run: str) -> str | None:
        """Return the live process that computes a run, as text; None without such a process."""
        return lease.live_holder(self.partial(run) / LEASE, self.patience)

    def attempts(self, run: str) -> list[Attempt]:
        """Return the attempts at an unfinished run, oldest first."""
        return workspace.read_attempts(self.partial(run))

    def record(self, run: str) -> dict[str, Any]:
        """Return the record of a finished run, with sizes and hashes of its ``files``."""
        return self._read(run, RECORD, lambda path, record: record)

    def metrics(self, run: str) -> pd.DataFrame:
        """Return the run's metrics, after a check of their hash."""
        return self._read(run, METRICS, lambda path, _: files.read_parquet(path)[0])

    def weights(self, run: str, device: str | torch.device = "cpu") -> Tree:
        """Return the run's final weights, tensors on ``device``, after a check of their hash."""
        from fl.store.checkpoint import load_tree

        return self._read(run, WEIGHTS, lambda path, _: load_tree(path, device))

    def predictions(self, run: str) -> pd.DataFrame:
        """Return predictions of the run's final models, after a check of their hash."""
        return self._read(run, PREDICTIONS, lambda path, _: files.read_parquet(path)[0])

    def traces(self, run: str) -> dict[str, torch.Tensor]:
        """Return values that the run's method recorded in each evaluated round, after a check.

        Returns:
            Tensors [evaluated rounds, ...] by name, and ``round``, int64 [evaluated rounds]; empty
            if the method records nothing.
        """
        if TRACES not in self.record(run)["files"]:
            return {}
        from fl.store.checkpoint import load_tree

        return self._read(run, TRACES, lambda path, _: load_tree(path))

    def state(self, run: str) -> tuple[Tree, Path | None]:
        """Return the state after the run's last round, and the file of its clients, after a check.

        The file is None if the state has the clients.
        """
        from fl.store.checkpoint import load_tree

        state = self._read(run, STATE, lambda path, _: load_tree(path))
        has_rows = CLIENT_ROWS in self.record(run)["files"]
        return state, self._read(run, CLIENT_ROWS, lambda path, _: path) if has_rows else None

    def folder(self, run: str) -> Path:
        """Return the folder of a run, finished or unfinished."""
        return self._folder(run) if self.has(run) else self.partial(run)

    def partial(self, run: str) -> Path:
        """Return the folder of an unfinished run."""
        return self.root / f"{_check_name(run)}.partial"

    def verify(self, run: str, hashed: bool = True) -> list[str]:
        """Return a line for each damaged file of a finished run; empty if all are intact.

        Args:
            run: The run.
            hashed: Whether hashes are compared; if not, a file is damaged if its size differs.
        """
        folder = self._folder(run)
        if not self.has(run):
            return [f"{folder}: is no finished run"]
        try:
            with files.disk_errors(folder):
                descriptions = files.read_sealed(folder / RECORD)["files"]
                damages = [
                    files.find_damage(folder / name, entry, hashed)
                    for name, entry in descriptions.items()
                ]
        except FedloomError as error:
            return [str(error)]
        return [damage for damage in damages if damage]

    def remove(self, run: str, condition: Callable[[], object] = lambda: True) -> None:
        """Remove a run, finished or not.

        Args:
            run: The run.
            condition: Function that is called when no other process can work on the run; if its
                result is false, the run stays.

        Raises:
            FedloomError: If a process is computing the run.
        """
        partial = self.partial(run)
        with files.disk_errors(partial):
            run_lease = lease.take(
                partial / LEASE, lambda: False, self.beat, self.patience, wait=False
            )
            if run_lease is None:
                raise FedloomError(
                    f"{partial}: {lease.holder(partial / LEASE) or 'another process'} is computing "
                    "this run",
                    advice="stop this process first. If it has died on another host, train the run "
                    f"again: after {self.patience:g} s the new process replaces it",
                )
            try:
                if condition():
                    files.erase(self._folder(run))
                    erase(partial, run_lease)
            finally:
                run_lease.release()
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
        """Open a run as a context, in which only this process computes it.

        At the end the lease is released; an unfinished run stays for the next process.

        Args:
            run: The run.
            keep: Files that the run must have to be finished.
            waiting: Function that is called while another process computes the run.
            wait: Whether to wait for another process.

        Yields:
            The folder to compute the run in. None if the run is finished, or, without ``wait``, if
            another live process computes it.

        Raises:
            FedloomError: If the run's folder cannot be read.
        """
        partial, folder = self.partial(run), self._folder(run)
        if folder.exists() and not os.access(folder, os.R_OK | os.X_OK):
            # The run may be finished, so it must not be replaced.
            raise FedloomError(f"{folder}: permission denied", advice="ask its owner to share it")

        def is_finished() -> bool:
            waiting()
            return self.has(run, keep)

        with files.disk_errors(partial):
            run_lease = lease.take(partial / LEASE, is_finished, self.beat, self.patience, wait)
        if run_lease is not None and self.has(
            run, keep
        ):  # Finished between the look and the lease.
            erase(partial, run_lease)
            run_lease = None
        if run_lease is None:
            self._sweep(run)
            yield None
            return
        try:
            with files.disk_errors(partial):
                _clear(partial)
            yield Workspace(self, run, run_lease)
        finally:
            run_lease.release()
            with contextlib.suppress(OSError):
                partial.rmdir()  # Only if there is nothing to come back to.

    def publish(self, run: str, result: Path) -> bool:
        """Rename a complete result to its final name, or add its files to a finished run.

        Returns:
            False if the finished run has all files already.
        """
        final = self._folder(run)
        if not self.has(run) and final.exists():
            files.move(final, result.parent / f"removed-{secrets.token_hex(8)}")
        if files.move(result, final):
            return True
        result_files = files.read_sealed(result / RECORD)["files"]
        added = [
            name for name in OPTIONAL_FILES if name in result_files and not self.has(run, (name,))
        ]
        if not added:
            return False
        record = files.read_sealed(final / RECORD)
        descriptions = record.pop("files") | {name: result_files[name] for name in added}
        files.write_described(final / RECORD, record, descriptions)
        for name in added:
            (result / name).replace(final / name)
        files.sync_folder(final)
        return True

    def _folder(self, run: str) -> Path:
        """Return the folder of a finished run."""
        return self.root / _check_name(run)

    def _read(self, run: str, name: str, read: Callable[[Path, dict[str, Any]], T]) -> T:
        """Return the content of one file of a finished run, after a check of its hash."""
        path = self._folder(run) / name
        if not self.has(run):
            raise DataError(f"{path.parent}: is no finished run", advice="train it first")
        try:
            with files.disk_errors(path):
                record = files.read_sealed(path.parent / RECORD)
                if name != RECORD:
                    if name not in record["files"]:
                        raise DataError(f"{path}: was not stored with the run")
                    if problem := files.find_damage(path, record["files"][name]):
                        raise DataError(problem)
                return read(path, record)
        except DataError as error:
            advice = "remove it with `fedloom store verify --remove`, and train it again"
            raise DataError(str(error), advice=advice) from error

    def _sweep(self, run: str) -> None:
        """Remove the unfinished folder of a finished run, unless a process works in it."""
        partial = self.partial(run)
        # Checkpoints of a run without weights belong to an interrupted run for its weights.
        is_needed = (partial / CHECKPOINTS).exists() and not self.has_weights(run)
        if is_needed or not partial.exists():
            return
        with contextlib.suppress(OSError):
            run_lease = lease.take(
                partial / LEASE, lambda: False, self.beat, self.patience, wait=False
            )
            if run_lease is not None:
                erase(partial, run_lease)


def _clear(partial: Path) -> None:
    """Remove files of a killed process, except its checkpoints."""
    for path in partial.iterdir():
        if path.is_dir() and path.name != CHECKPOINTS:
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.endswith(".tmp"):
            path.unlink(missing_ok=True)


def _check_name(run: str) -> str:
    if not is_name(run):
        raise ValueError(f"{run!r} is no name of a run: use letters, digits, '-' and '_'")
    return run
