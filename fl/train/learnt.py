"""What jobs have learnt of the speed of backends, kept for those that train the like of it.

``<results>/trials/`` has a small file for each method, model, shapes and machine. A file that does
not fit the code or the version of torch any more, or that cannot be read, is as none and will be
replaced. Two jobs that measure the same at once write one after the other; both are right. The
files decide no number and may be deleted.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fl.base import identity
from fl.base.errors import FedloomError
from fl.base.files import ordinary, parse_json, write_json

logger = logging.getLogger(__name__)

FOLDER = "trials"
LONGEST = 1 << 16
"""Bytes of a file at most; real ones have about one kilobyte."""

COUNTED = ("rounds", "local_epochs", "local_steps", "evaluate_every", "lr_decay_every", "schedule")
"""Settings of training that decide how many steps there are, and not what a step costs."""


@dataclass(frozen=True)
class Measured:
    """What is known of the speed of some runs.

    Attributes:
        seconds: Of a step of all participants, by backend.
        compiling: Seconds that it took to compile, where that was tried.
        refused: Why they cannot be compiled; "" if nothing is known against it.
        expected: Seconds that compiling is expected to take; 0 where that was not looked into.
        turns: How often the loop and the stack were timed, by all jobs together.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    compiling: float = 0.0
    refused: str = ""
    expected: float = 0.0
    turns: int = 0

    def best(self, steps: float) -> str:
        """The backend that does so many steps soonest, compiled first if need be."""
        waits = {"compiled": self.compiling}
        return min(self.seconds, key=lambda name: self.seconds[name] * steps + waits.get(name, 0.0))

    def uncompiled(self) -> Measured:
        """Without the compiled stack."""
        return replace(self, seconds={k: v for k, v in self.seconds.items() if k != "compiled"})


@dataclass(frozen=True)
class Subject:
    """What was measured.

    Attributes:
        method: Its spec and what a study adds to it, without what costs nothing.
        place: Model, shapes and machine: what the like of it shares with other methods.
        fits: By which code, and which torch. What was measured by others is forgotten.
    """

    method: Any
    place: Mapping[str, Any]
    fits: Mapping[str, str]

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{identity.digest(self.place)}-{identity.digest([self.method, self.place])}.json"

    @classmethod
    def of(
        cls,
        spec: Mapping[str, Any],
        code: Mapping[str, str],
        shapes: Mapping[str, Any],
        device: torch.device,
        threads: int,
    ) -> Subject:
        """That of runs with such a spec.

        Args:
            code: The hashes of all that decides their numbers.
            shapes: Of what a step works on.
        """
        training = {key: value for key, value in spec["training"].items() if key not in COUNTED}
        return cls(
            method=_costly([spec["method"], spec["terms"], spec.get("alterations", []), training]),
            place={
                "model": spec["model"],
                "shapes": dict(shapes),
                "arithmetic": [training["precision"], training["memory_format"]],
                "machine": machine(device, threads),
            },
            fits={
                **{key: one for key, one in code.items() if key not in ("dataset", "partition")},
                "torch": torch.__version__,
            },
        )

    def program(self, name: str) -> str:
        """The name of a planned program in this version, for these shapes, on this machine."""
        return identity.digest([name, self.place, self.fits])


def _costly(value: Any) -> Any:
    """A spec without what costs nothing: of weights and rates only whether they are zero."""
    if isinstance(value, Mapping):
        return {key: _costly(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_costly(one) for one in value]
    return value != 0.0 if isinstance(value, float) else value


class Learnt:
    """What is kept in one results folder of one subject.

    Args:
        results: None keeps nothing.
    """

    def __init__(self, results: Path | None, subject: Subject) -> None:
        self._folder, self._subject = results and results / FOLDER, subject

    def read(self) -> Measured | None:
        """What is known of the subject; None if nothing is, or nothing that fits."""
        if self._folder is None:
            return None
        found = _read(self._folder / self._subject.name)
        same = found.get("fits") == {**self._subject.fits}
        return _measured(found) if same and found.get("method") == self._subject.method else None

    def usual(self) -> str | None:
        """The faster one of `loop` and `stacked` for other methods at the same place, by all that
        were measured; None if there are none.
        """
        totals = {"loop": 0.0, "stacked": 0.0}
        for known in self._neighbours():
            if {*totals} <= {*known.seconds}:
                for name in totals:
                    totals[name] += math.log(known.seconds[name])
        return min(totals, key=totals.__getitem__) if any(totals.values()) else None

    def _neighbours(self) -> Iterator[Measured]:
        place, _, _ = self._subject.name.partition("-")
        for path in sorted(self._folder.glob(f"{place}-*.json")) if self._folder else ():
            found = _read(path)
            fits = found.get("fits")
            known = _measured(found)
            # Another method's code is another; that of rounds and of the model is the same.
            if known and isinstance(fits, dict) and self._common(fits) == self._common():
                yield known

    def _common(self, fits: Mapping[str, Any] | None = None) -> list[Any]:
        given = self._subject.fits if fits is None else fits
        return [given.get(key) for key in ("core", "model", "torch")]

    def write(self, known: Measured) -> None:
        """Keep what was found. Whoever may not write there measures again."""
        if self._folder is None:
            return
        told = {"method": self._subject.method, "place": self._subject.place}
        path = self._folder / self._subject.name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {**told, "fits": self._subject.fits, **asdict(known)})
        except OSError as error:
            logger.info("%s: not kept (%s)", path, error.strerror)


def _read(path: Path) -> dict[str, Any]:
    """The content of a file; empty for one that is none, or that somebody damaged."""
    with contextlib.suppress(OSError, ValueError, FedloomError):
        with ordinary(path) as file:
            found = parse_json(file.read(LONGEST))
        if isinstance(found, dict):
            return found
    return {}


def _measured(found: Mapping[str, Any]) -> Measured | None:
    """What a file says, if it can be: seconds are positive, and both uncompiled ways are there."""
    seconds, refused = found.get("seconds"), found.get("refused")
    spent: Any = found.get("compiling")
    expected: Any = found.get("expected", 0.0)
    if not isinstance(seconds, dict) or not isinstance(refused, str):
        return None
    turns: Any = found.get("turns", 1)
    if not all(map(_number, (spent, expected, turns))):
        return None
    known = {"loop", "stacked"}
    if not known <= {*seconds} <= known | {"compiled"}:
        return None
    if not all(_number(value) and value > 0 for value in seconds.values()):
        return None
    return Measured(dict(seconds), float(spent), refused, float(expected), int(turns))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def machine(device: torch.device, threads: int) -> dict[str, Any]:
    """What decides the speed of this machine: nodes of one kind share what was learnt."""
    if device.type == "cuda":
        return {"device": torch.cuda.get_device_name(device), "threads": threads}
    return {"device": processor(), "threads": threads}


@cache
def processor() -> str:
    """The name of this machine's processor, and the instructions that torch uses of it."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        name = next((li.partition(":")[2].strip() for li in lines if "model name" in li), name)
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"
