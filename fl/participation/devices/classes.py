"""Some classes of devices, such as fast and slow ones, with a share of the clients each.

Z. Chai, A. Ali, S. Zawad, S. Truex, A. Anwar, N. Baracaldo, Y. Zhou, H. Ludwig, F. Yan, Y. Cheng.
TiFL: A Tier-based Federated Learning System. HPDC 2020.

TiFL's clients have 4, 2, 1, 0.5 or 0.1 processors, a fifth of them each: ``shares: [0.2, 0.2, 0.2,
0.2, 0.2]``, ``speeds: [4e10, 2e10, 1e10, 5e9, 1e9]``. Each client draws its class, so shares hold
on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from fl.api import ALL_TASKS, Bound, BuildContext, DeviceTable, FedloomError, Positive, Share
from fl.blocks.device_draws import DAY, DOWNLOAD, SPEED, UPLOAD, device_table, uniform_draws


@dataclass(frozen=True)
class Classes:
    """Devices of a few classes; by default half of the clients are five times as slow.

    Attributes:
        shares: Share of the clients in each class; their sum is 1.
        speeds: Floating-point operations a second in each class.
        downloads: Bytes a second from the server in each class, or one number for all.
        uploads: Bytes a second to the server in each class, or one number for all.
        failure: Probability that a client breaks off in a round.
        present: Share of each day in which a client is there, from a time of day on that is drawn.
        day: Seconds of a day; of a small model, many rounds take place in a real one.
    """

    shares: tuple[Share, ...] = (0.5, 0.5)
    speeds: tuple[Positive, ...] = (SPEED, SPEED / 5)
    downloads: tuple[Positive, ...] = (DOWNLOAD,)
    uploads: tuple[Positive, ...] = (UPLOAD,)
    failure: Annotated[float, Bound(low=0, below=1)] = 0.0
    present: Annotated[float, Bound(low=0.001, high=1)] = 1.0
    day: Annotated[float, Bound(low=1)] = DAY

    tasks: ClassVar = ALL_TASKS

    def check(self, clients: int | None) -> None:
        """Raise `FedloomError` for shares that are no whole, and lists of other lengths."""
        if abs(sum(self.shares) - 1) > 1e-9:
            problem = f"shares: have the sum {sum(self.shares):g}"
            raise FedloomError(problem, "shares with the sum 1")
        for key in ("speeds", "downloads", "uploads"):
            length, count = len(getattr(self, key)), len(self.shares)
            if length != count and (length != 1 or key == "speeds"):
                problem = f"{key}: are {length}, but there are {count} shares"
                raise FedloomError(problem, f"a list of {count} numbers")

    def build(self, context: BuildContext) -> DeviceTable:
        """Return the table of the devices."""
        self.check(context.clients)
        ends = np.cumsum(self.shares)[:-1]
        of_client = np.searchsorted(ends, uniform_draws(context, "class"), side="right")

        def by_client(values: tuple[float, ...]) -> Any:
            return np.broadcast_to(values, len(self.shares))[of_client]

        return device_table(
            context,
            by_client(self.speeds),
            by_client(self.downloads),
            by_client(self.uploads),
            self.failure,
            self.present,
            self.day,
        )
