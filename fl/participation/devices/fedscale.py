"""Devices from the files of FedScale: measured phones, and when they are idle and connected.

F. Lai, Y. Dai, S. Singapuram, J. Liu, X. Zhu, H. Madhyastha, M. Chowdhury. FedScale: Benchmarking
Model and System Performance of Federated Learning at Scale. ICML 2022.

You provide the files, ``client_device_capacity`` and perhaps ``client_behave_trace`` of its
repository, or others of the same form, as pickle or as JSON (``.json``). Pickles are read without
running code. What is in the files is part of what a run is.

A capacity has under each device ``computation``, milliseconds of a forward pass for one sample, and
``communication``, kilobits a second (of 1024 bits, as in FedScale's code) to and from the server. A
behaviour has ``active`` and ``inactive``, the seconds at which a device comes and goes, which
repeat after ``finish_time``.

FedScale's time for a model of any size is 3 * `computation` for a sample that is trained on; here
time follows from counted operations. So the file's milliseconds become a speed: that of
`sample_operations` in this time. The file does not say whose time it is; the default of the key is
the operations of MobileNetV2, 300 million multiplications and additions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fl.api import ALL_TASKS, Bound, BuildContext, DeviceTable, Positive, Presence, rng
from fl.base.errors import DataError, wrap_read_errors
from fl.base.files import is_file
from fl.base.folders import path_of
from fl.base.hashes import change_stamp
from fl.data.readers.pickles import load_pickle

BYTES_A_KILOBIT = 1024 / 8


@dataclass(frozen=True)
class Fedscale:
    """Devices of FedScale.

    Attributes:
        capacity: Path of the file of capacities.
        behaviour: Path of the file of times at which devices are there; null: always.
        sample_operations: Floating-point operations that take the file's `computation`.
        order: Device of a client: `drawn` from the file, its times apart from its capacity; or the
            `file`'s order, from its begin again for further clients.
        failure: Probability that a client breaks off in a round.
    """

    capacity: str
    behaviour: str | None = None
    sample_operations: Positive = 6e8
    order: Literal["drawn", "file"] = "drawn"
    failure: Annotated[float, Bound(low=0, below=1)] = 0.0

    tasks: ClassVar = ALL_TASKS
    files: ClassVar = ("capacity", "behaviour")

    def check(self, clients: int | None) -> None:
        """Raise `DataError` for files that cannot be used."""
        self._capacities()
        self._behaviours()

    def build(self, context: BuildContext) -> DeviceTable:
        """Return the table of the devices."""
        milliseconds, kilobits = self._capacities()
        device = self._devices(context, "capacity", len(milliseconds))
        bandwidth = BYTES_A_KILOBIT * kilobits[device]
        return DeviceTable(
            self.sample_operations / (milliseconds[device] / 1000),
            bandwidth,
            bandwidth,
            np.full(context.clients, self.failure),
            self._presence(context),
        )

    def _capacities(self) -> tuple[np.ndarray, np.ndarray]:
        path = path_of(self.capacity)
        return _read_capacities(path, change_stamp([path]))

    def _behaviours(self) -> tuple[np.ndarray, ...] | None:
        path = path_of(self.behaviour) if self.behaviour else None
        return _read_behaviours(path, change_stamp([path])) if path else None

    def _devices(self, context: BuildContext, purpose: str, count: int) -> np.ndarray:
        """Return the number of each client's device in a file, int64 [clients]."""
        if self.order == "file":
            return np.arange(context.clients) % count
        return rng.generator(context.seed, "devices", purpose).integers(count, size=context.clients)

    def _presence(self, context: BuildContext) -> Presence | None:
        behaviours = self._behaviours()
        if behaviours is None:
            return None
        ends, begin, end, period = behaviours
        device = self._devices(context, "behaviour", len(ends))
        counts = np.diff(ends, prepend=0)[device]
        # The intervals of each client's device, one client after the other.
        offset = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        interval = np.repeat(np.concatenate([[0], ends[:-1]])[device], counts) + offset
        clients = np.repeat(np.arange(context.clients), counts)
        has_one = bool((period == period[0]).all())
        periods = float(period[0]) if has_one else period[interval]
        return Presence(clients, begin[interval], end[interval], periods)


def _read(path: Path) -> Mapping[Any, Any]:
    """Return the devices of a file, by their id.

    Raises:
        DataError: If the file has no devices.
    """
    allowed = "a pickle or JSON of FedScale, with a dictionary for each device"
    if not is_file(path):
        raise DataError(f"{path}: the file does not exist", allowed)
    with wrap_read_errors(path, "cannot be read", f"write {allowed}"):
        is_json = path.suffix == ".json"
        content = json.loads(path.read_text(encoding="utf-8")) if is_json else load_pickle(path)
    if not isinstance(content, dict) or not content:
        raise DataError(f"{path}: has no devices", allowed)
    for name, device in content.items():
        if not isinstance(device, dict):
            raise DataError(f"{path}: {name}: is {device!r:.50}", allowed)
    return content


@lru_cache(maxsize=2)
def _read_capacities(path: Path, stamp: str) -> tuple[np.ndarray, np.ndarray]:
    """Return milliseconds and kilobits of each device, read again if the stamp differs."""
    devices = _read(path)
    columns = []
    for key in ("computation", "communication"):
        for name, device in devices.items():
            number = device.get(key)
            if type(number) not in (int, float) or not 0 < number < np.inf:
                raise DataError(f"{path}: {name}.{key}: is {number!r:.50}", "a number above 0")
        columns.append(np.array([device[key] for device in devices.values()], np.float64))
    return columns[0], columns[1]


@lru_cache(maxsize=2)
def _read_behaviours(path: Path, stamp: str) -> tuple[np.ndarray, ...]:
    """Return the times of all devices, read again if the stamp differs.

    Returns:
        The number of intervals up to and with those of each device, int64 [devices]; begin, end and
        period of each interval, [intervals]. As in FedScale, an interval that ends before it begins
        is none.
    """
    counts, pieces = list[int](), list[np.ndarray]()
    for name, device in _read(path).items():
        period = device.get("finish_time")
        if type(period) not in (int, float) or not 0 < period < np.inf:
            problem = f"{path}: {name}.finish_time: is {period!r:.50}"
            raise DataError(problem, "seconds above 0")
        with wrap_read_errors(f"{path}: {name}", "has no times", "lists active and inactive"):
            both = [np.asarray(device[key], np.float64) for key in ("active", "inactive")]
            count = min(map(len, both))
            begin, end = both[0][:count], np.minimum(both[1][:count], period)
        is_interval = (begin >= 0) & (end - begin >= 1)
        pieces.append(np.stack([begin, end, np.full(count, period)])[:, is_interval])
        counts.append(int(is_interval.sum()))
    begin, end, period = np.concatenate(pieces, axis=1)
    if not len(begin):
        raise DataError(f"{path}: no device is ever there", "times active before inactive")
    return np.cumsum(counts), begin, end, period
