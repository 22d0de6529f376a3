"""Samples that come one by one, written by the thousand."""

from __future__ import annotations

from typing import Any

import numpy as np

from fl.data.prepared import Writer

ROWS = 1000


class Batched:
    """Collects samples for a `Writer`, and appends them to its arrays `ROWS` at a time.

    As a context manager it appends the rest at its end, unless there was an error.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer, self._waiting = writer, dict[str, list[Any]]()
        self.count = 0

    def __enter__(self) -> Batched:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is None:
            self._flush()

    def add(self, **values: Any) -> None:
        """One sample: its part of every array, ``x``, ``y`` and so on, always of the same ones."""
        for name, value in values.items():
            self._waiting.setdefault(name, []).append(value)
        self.count += 1
        if self.count % ROWS == 0:
            self._flush()

    def _flush(self) -> None:
        for name, values in self._waiting.items():
            if values:
                self._writer.append(name, np.stack(values))
        self._waiting = {}
