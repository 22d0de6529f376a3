"""An unfinished run of a store, and how it becomes a finished one (see `fl.store.store`)."""

from __future__ import annotations

import contextlib
import logging
import secrets
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fl.base import files
from fl.base.errors import DataError, FedloomError
from fl.store import attempts, lease
from fl.store.attempts import Attempt
from fl.store.layout import (
    CHECKPOINTS,
    LEASE,
    METRICS,
    OPTIONAL_FILES,
    PREDICTIONS,
    RECORD,
    TRACES,
    WEIGHTS,
)

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)


class Finished(Protocol):
    """What a workspace needs of its store."""

    def has(self, run: str, keep: Collection[str] = ()) -> bool:
        """Whether the run is finished and has these files."""

    def publish(self, run: str, result: Path) -> bool:
        """Put a finished run's folder into the store; False if it adds nothing to what is there."""


class Workspace:
    """An unfinished run, held by this process."""

    def __init__(self, store: Finished, run: str, taken: lease.Lease) -> None:
        self._store, self._run, self._lease = store, run, taken
        self.folder = taken.path.parent
        self.checkpoints = self.folder / CHECKPOINTS
        self._number, self._attempt = 0, Attempt()

    @property
    def lost(self) -> bool:
        """Whether another process has taken the run over, as it may after a long suspension."""
        return self._lease.lost

    def begin(self, attempt: Attempt) -> None:
        """Say who trains the run from here on."""
        self._number, self._attempt = attempts.next_number(self.folder), attempt
        attempts.write(self.folder, self._number, attempt)

    def note(self, **known: Any) -> None:
        """Say more of this attempt: how it ended, and the like."""
        said = replace(self._attempt, **known)
        if said != self._attempt:
            self._attempt = said
            attempts.write(self.folder, self._number, said)

    def finish(
        self,
        record: Mapping[str, Any],
        rows: pd.DataFrame,
        weights: dict[str, Any] | None = None,
        traces: dict[str, Any] | None = None,
        predictions: pd.DataFrame | None = None,
    ) -> bool:
        """Put the finished run into the store and remove its checkpoints.

        Returns:
            False if another process finished it first: that result stays and this one is dropped.

        Raises:
            FedloomError: If the disk is full or refuses; the checkpoints then stay.
        """

        def write(result: Path) -> None:
            files.write_table(result / METRICS, rows)
            kept = [METRICS]
            for name, tree in ((WEIGHTS, weights), (TRACES, traces)):
                if tree is not None:
                    from fl.store.tree_file import save_tree

                    save_tree(tree, result / name)
                    kept.append(name)
            if predictions is not None:
                files.write_table(result / PREDICTIONS, predictions)
                kept.append(PREDICTIONS)
            files.write_sealed(result / RECORD, record, files=kept)

        given = {WEIGHTS: weights, PREDICTIONS: predictions}
        return self._finish(write, [name for name in OPTIONAL_FILES if given[name] is not None])

    def adopt(self, source: Path) -> bool:
        """Put a copy of a finished run's folder into the store, as `finish` does.

        Raises:
            DataError: If the copy does not match its record.
        """

        def write(result: Path) -> None:
            record = files.read_sealed(source / RECORD)
            for name, described in record["files"].items():
                with (
                    files.open_regular(source / name) as incoming,
                    files.atomic_writer(result / name) as out,
                ):
                    shutil.copyfileobj(incoming, out)
                if problem := files.find_damage(result / name, described):
                    raise DataError(f"{source / name}: the copy {problem}")
            files.write_bytes(result / RECORD, (source / RECORD).read_bytes())

        return self._finish(write, [name for name in OPTIONAL_FILES if (source / name).is_file()])

    def _finish(self, write: Callable[[Path], None], kept: Collection[str]) -> bool:
        """Let ``write`` fill a folder and publish it."""
        result = self.folder / f"result-{secrets.token_hex(8)}"
        with files.disk_errors(self.folder):
            try:
                published = not self._store.has(self._run, kept)
                if published:
                    result.mkdir(parents=True)
                    write(result)
                    published = self._store.publish(self._run, result)
            except (OSError, FedloomError):
                # Who finished first has perhaps removed the folder under us.
                if not self._store.has(self._run, kept):
                    raise
                published = False
            finally:
                shutil.rmtree(result, ignore_errors=True)
        if not published:
            log.info("%s: another process finished this run first; its result stays", self._run)
        if self._lease.check():
            erase(self.folder, self._lease)
        return published


def erase(partial: Path, taken: lease.Lease) -> None:
    """Remove an unfinished run: its files, then the lease, then its folder.

    What cannot be removed now is left to the next `Store.open`.
    """
    with contextlib.suppress(OSError):
        for path in partial.iterdir():
            if path.is_dir():
                files.erase(path)
            elif path.name != LEASE:
                path.unlink(missing_ok=True)
    taken.release()
    with contextlib.suppress(OSError):
        partial.rmdir()
