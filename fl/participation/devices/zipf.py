"""Devices by Zipf's law: most are about as fast as the fastest, and few are very slow.

Z. Jiang, W. Wang, B. Li, B. Li. Pisces: Efficient Federated Learning via Guided Asynchronous
Training. SoCC 2022.

As in its code, the client of rank k takes a time that falls with k^-a, from `slowest` times that of
the fastest device at rank 1 to that of the fastest at the last rank. There, n clients have the
ranks 1 to n; here each client draws one of `ranks` ranks. So clients stay what they are when others
are added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fl.api import ALL_TASKS, Bound, BuildContext, DeviceTable, Positive
from fl.blocks.device_draws import DAY, DOWNLOAD, SPEED, UPLOAD, device_table, uniform_draws


@dataclass(frozen=True)
class Zipf:
    """Devices whose slowness follows Zipf's law; all have one bandwidth.

    Attributes:
        speed: Floating-point operations a second of the fastest device.
        slowest: How often the slowest device's time is the fastest one's.
        a: Exponent; the larger, the fewer are slow.
        ranks: Number of different devices.
        download: Bytes a second from the server.
        upload: Bytes a second to the server.
        failure: Probability that a client breaks off in a round.
        present: Share of each day in which a client is there, from a time of day on that is drawn.
        day: Seconds of a day; of a small model, many rounds take place in a real one.
    """

    speed: Positive = SPEED
    slowest: Annotated[float, Bound(low=1)] = 10.0
    a: Positive = 1.2
    ranks: Annotated[int, Bound(low=2, high=1_000_000)] = 100
    download: Positive = DOWNLOAD
    upload: Positive = UPLOAD
    failure: Annotated[float, Bound(low=0, below=1)] = 0.0
    present: Annotated[float, Bound(low=0.001, high=1)] = 1.0
    day: Annotated[float, Bound(low=1)] = DAY

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> DeviceTable:
        """Return the table of the devices."""
        weights = np.arange(1, self.ranks + 1, dtype=np.float64) ** -self.a
        shares = (weights - weights[-1]) / (weights[0] - weights[-1])
        times = 1 + (self.slowest - 1) * shares
        drawn = np.floor(self.ranks * uniform_draws(context, "rank")).astype(np.int64)
        return device_table(
            context,
            self.speed / times[drawn],
            self.download,
            self.upload,
            self.failure,
            self.present,
            self.day,
        )
