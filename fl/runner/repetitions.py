"""Repetitions of a stored run: the same run, with other last bits of the weights it begins with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from fl.base import identity
from fl.base.errors import DataError
from fl.plan.bundle import Run
from fl.plan.run_spec import RunSpec, with_defaults
from fl.store import import_export, run_check
from fl.store.run_record import WEIGHTS, RunRecord
from fl.store.store import Store

TrainRun = Callable[[Run, RunRecord], None]
"""Trains a run into the temporary store; the record is that of the run which it repeats."""


@dataclass(frozen=True)
class Repetitions:
    """Repetitions of the runs of a store, see `fl.api.training.Training.rounding`.

    Attributes:
        store: The store, which is only read.
        scratch: A temporary store.
        train: Trains a run into it.
    """

    store: Store
    scratch: Store
    train: TrainRun

    def stored(self, run: str) -> Iterator[str]:
        """Yield the repetitions of a run that the store has, from the first one on."""
        if not self._has_starts(run):
            return
        number = 1
        while self.store.has(repetition := self.planned(run, number).run):
            yield repetition
            number += 1

    def planned(self, run: str, number: int) -> Run:
        """Return a repetition of a stored run, which starts from one of the same number."""
        record = RunRecord.from_json(self.store.record(run))
        spec = with_defaults(record.spec)
        spec["training"] = {**spec["training"], "rounding": number}
        start = None if record.start is None else self.planned(record.start, number)
        if start is not None and spec.get("start") is not None:
            spec["start"] = start.point_id
        elif start is not None:
            spec["train_on"] = start.run
        run_spec = RunSpec(spec)
        code, defaults = run_spec.code, run_spec.default_keys
        point = identity.point_id(spec, code, defaults)
        name = identity.run_id(point, spec["seed"])
        return Run(name, spec, code, defaults, start.run if start else None, point_id=point)

    def trained(self, run: str, number: int, keep: tuple[str, ...] = ()) -> str:
        """Return a repetition of a stored run, which is in the temporary store then.

        Args:
            run: The stored run.
            number: Number of the repetition.
            keep: Optional files that it must have.

        Raises:
            FedloomError: If a run from which it starts is missing or damaged.
        """
        if not self._has_starts(run):
            raise DataError(f"{run}: a run from which it starts is missing in {self.store.root}")
        repetition = self.planned(run, number)
        if self.store.has(repetition.run, keep):
            import_export.copy_run(repetition.run, self.store, self.scratch)
        if not self.scratch.has(repetition.run, keep):
            record = RunRecord.from_json(self.store.record(run))
            if record.start is not None:
                self.trained(record.start, number, (WEIGHTS,))
            self.train(replace(repetition, keep=[*keep]), record)
        return repetition.run

    def _has_starts(self, run: str) -> bool:
        """Whether the store has the runs from which a run starts, undamaged."""
        start = RunRecord.from_json(self.store.record(run)).start
        if start is None:
            return True
        is_there = self.store.has(start) and not run_check.find_problems(self.store, start)
        return is_there and self._has_starts(start)
