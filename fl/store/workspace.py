"""Unfinished runs of a store: attempts to train them, and their conversion to finished runs.

A process that opens a run to train it writes ``attempt-N.json`` next to the checkpoint, and notes
there how it ended. A killed process cannot do that; a later process asks the scheduler and notes
the reason. See `fl.store.store` for the folders.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fl.base import fields, files
from fl.base.errors import DataError, FedloomError, Location
from fl.store import lease
from fl.store.run_record import (
    CHECKPOINTS,
    CLIENT_ROWS,
    LEASE,
    METRICS,
    OPTIONAL_FILES,
    PREDICTIONS,
    RECORD,
    STATE,
    TRACES,
    WEIGHTS,
)

if TYPE_CHECKING:
    import pandas as pd

    from fl.base.row_file import RowFile


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Attempt:
    """Attempt to train a run.

    Attributes:
        scheduler: `Slurm`, `PBS` or `LSF`; empty without a scheduler.
        job: Number of the scheduler's job.
        log: Log file of the process, if it has one.
        memory_mb: Memory of the job by the config.
        stacked: Whether the checkpoint of another run contains the state of this run.
        restarts: How often Slurm had put the job back into its queue before.
        ended: Reason of the end: `error`, `time`, `memory`, `node`, `preempted`, `requeued` or
            `cancelled`; `killed` for an unknown reason; empty before the reason is known.
        error: Text of the error that ended it.
    """

    scheduler: str = ""
    job: str = ""
    log: str = ""
    memory_mb: int = 0
    stacked: bool = False
    restarts: int = 0
    ended: str = ""
    error: str = ""


def read_attempts(folder: Path, start: float = 0.0) -> list[Attempt]:
    """Return the attempts at a run, oldest first.

    Args:
        folder: Folder of the unfinished run.
        start: Time since which attempts count, in seconds since 1970.
    """
    return [attempt for _, attempt in sorted(_numbered_attempts(folder, start).items())]


def _next_number(folder: Path) -> int:
    """Return the number of the next attempt."""
    return max(_numbered_attempts(folder), default=0) + 1


def write_attempt(folder: Path, number: int, attempt: Attempt) -> None:
    """Write the file of an attempt; an error of the disk does not stop the run.

    A full disk has no room for a new file, but mostly for more text in the old one, whose end is
    still within a block of the disk. Without its reason, the end would be taken for a kill.
    """
    path = folder / f"attempt-{number}.json"
    with contextlib.suppress(OSError, FedloomError):
        if not folder.is_dir():  # A finished run has no such folder.
            return
        try:
            files.write_json(path, asdict(attempt))
        except (OSError, FedloomError):
            with path.open("r+b") as file:
                file.write(json.dumps(asdict(attempt)).encode())
                file.truncate()


def close_attempt(folder: Path, ended: str) -> None:
    """Note how the newest attempt ended, unless it has noted that itself."""
    number, attempt = max(_numbered_attempts(folder).items(), default=(0, Attempt(ended="error")))
    if not attempt.ended:
        write_attempt(folder, number, replace(attempt, ended=ended))


def _numbered_attempts(folder: Path, start: float = 0.0) -> dict[int, Attempt]:
    attempts: dict[int, Attempt] = {}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            name = re.fullmatch(r"attempt-(\d+)\.json", path.name)
            if name and path.stat().st_mtime >= start:
                with contextlib.suppress(OSError, ValueError, FedloomError):
                    content = fields.mapping(
                        files.parse_json(path.read_bytes()), Location(path.name)
                    )
                    attempts[int(name[1])] = Attempt(
                        **fields.parse(Attempt, content, Location(path.name))
                    )
    return attempts


class RunStore(Protocol):
    """Functions of a store that a workspace calls."""

    def has(self, run: str, keep: Collection[str] = ()) -> bool:
        """Whether the run is finished and has these files."""

    def publish(self, run: str, result: Path) -> bool:
        """Move a finished run's folder into the store; False if the store has all its files."""


class Workspace:
    """Unfinished run that this process holds.

    Attributes:
        folder: Folder of the unfinished run.
        checkpoints: Folder of its checkpoints.
    """

    def __init__(self, store: RunStore, run: str, run_lease: lease.Lease) -> None:
        """Open the workspace.

        Args:
            store: The store.
            run: The run.
            run_lease: Lease of the run, held by this process.
        """
        self._store, self._run, self._lease = store, run, run_lease
        self.folder = run_lease.path.parent
        self.checkpoints = self.folder / CHECKPOINTS
        self._number, self._attempt = 0, Attempt()

    @property
    def lost(self) -> bool:
        """Whether another process has taken over the run, for example after a long suspension."""
        return self._lease.lost

    def begin(self, attempt: Attempt) -> None:
        """Write the file of a new attempt."""
        self._number, self._attempt = _next_number(self.folder), attempt
        write_attempt(self.folder, self._number, attempt)

    def note(self, **changes: Any) -> None:
        """Change fields of this attempt, such as the reason of its end."""
        attempt = replace(self._attempt, **changes)
        if attempt != self._attempt:
            self._attempt = attempt
            write_attempt(self.folder, self._number, attempt)

    def finish(
        self,
        record: Mapping[str, Any],
        rows: pd.DataFrame,
        weights: dict[str, Any] | None = None,
        traces: dict[str, Any] | None = None,
        predictions: pd.DataFrame | None = None,
        state: dict[str, Any] | None = None,
        row_file: RowFile | None = None,
    ) -> bool:
        """Write the finished run into the store and remove its checkpoints.

        Args:
            record: Its record.
            rows: Its metrics.
            weights: Its final weights, if they are stored.
            traces: Traces of its method, if it has some.
            predictions: Predictions of its final models, if they are stored.
            state: Its state after the last round, if it is kept.
            row_file: The file of its clients, if ``state`` has only their ``places`` in it.

        Returns:
            False if another process finished it first; that result stays.

        Raises:
            FedloomError: If the disk is full or cannot be written; the checkpoints then stay.
        """

        def write(result: Path) -> None:
            files.write_table(result / METRICS, rows)
            names = [METRICS]
            for name, tree in ((WEIGHTS, weights), (TRACES, traces), (STATE, state)):
                if tree is not None:
                    from fl.store.checkpoint import save_tree

                    save_tree(tree, result / name)
                    names.append(name)
            if predictions is not None:
                files.write_table(result / PREDICTIONS, predictions)
                names.append(PREDICTIONS)
            if row_file is not None:
                row_file.link(result / CLIENT_ROWS)
                names.append(CLIENT_ROWS)
            files.write_sealed(result / RECORD, record, files=names)

        optional = {WEIGHTS: weights, PREDICTIONS: predictions}
        return self._finish(write, [name for name in OPTIONAL_FILES if optional[name] is not None])

    def adopt(self, source: Path, changes: Mapping[str, object] | None = None) -> bool:
        """Copy a finished run's folder into the store, like `finish`.

        Args:
            source: Folder of the finished run.
            changes: Keys of the record that get other values; by default, it is copied as it is.

        Returns:
            False if another process finished it first; that result stays.

        Raises:
            DataError: If the copy does not match its record.
        """

        def write(result: Path) -> None:
            record = files.read_sealed(source / RECORD)
            for name, description in record["files"].items():
                if changes is None or not _linked(source / name, result / name):
                    with (
                        files.open_regular(source / name) as incoming,
                        files.atomic_writer(result / name) as out,
                    ):
                        shutil.copyfileobj(incoming, out)
                if problem := files.find_damage(result / name, description):
                    raise DataError(f"{source / name}: the copy {problem}")
            if changes is None:
                files.write_bytes(result / RECORD, (source / RECORD).read_bytes())
            else:
                descriptions = record.pop("files")
                files.write_described(result / RECORD, {**record, **changes}, descriptions)

        return self._finish(write, [name for name in OPTIONAL_FILES if (source / name).is_file()])

    def _finish(self, write: Callable[[Path], None], optional: Collection[str]) -> bool:
        """Fill a folder by ``write`` and move it into the store."""
        result = self.folder / f"result-{secrets.token_hex(8)}"
        with files.disk_errors(self.folder):
            try:
                published = not self._store.has(self._run, optional)
                if published:
                    result.mkdir(parents=True)
                    write(result)
                    published = self._store.publish(self._run, result)
            except (OSError, FedloomError):
                # A process that finished first may have removed this folder.
                if not self._store.has(self._run, optional):
                    raise
                published = False
            finally:
                shutil.rmtree(result, ignore_errors=True)
        if not published:
            log.info("%s: another process finished this run first; its result stays", self._run)
        if self._lease.check():
            erase(self.folder, self._lease)
        return published


def _linked(source: Path, target: Path) -> bool:
    """Give a file of a finished run, which never changes, a second name; False if that fails."""
    try:
        target.hardlink_to(source)
    except OSError:  # The file system has no hard links.
        return False
    return True


def erase(partial: Path, run_lease: lease.Lease) -> None:
    """Remove an unfinished run: its files, then the lease, then its folder.

    The next `Store.open` removes what cannot be removed now.
    """
    with contextlib.suppress(OSError):
        for path in partial.iterdir():
            if path.is_dir():
                files.erase(path)
            elif path.name != LEASE:
                path.unlink(missing_ok=True)
    run_lease.release()
    with contextlib.suppress(OSError):
        partial.rmdir()
