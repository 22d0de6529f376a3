"""Equal devices: all clients compute and send alike.

No publication: what papers assume that do not speak of devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fl.api import ALL_TASKS, Bound, BuildContext, DeviceTable, Positive
from fl.blocks.device_draws import DAY, DOWNLOAD, SPEED, UPLOAD, device_table


@dataclass(frozen=True)
class Equal:
    """Devices without differences.

    Attributes:
        speed: Floating-point operations a second.
        download: Bytes a second from the server.
        upload: Bytes a second to the server.
        failure: Probability that a client breaks off in a round.
        present: Share of each day in which a client is there, from a time of day on that is drawn.
        day: Seconds of a day; of a small model, many rounds take place in a real one.
    """

    speed: Positive = SPEED
    download: Positive = DOWNLOAD
    upload: Positive = UPLOAD
    failure: Annotated[float, Bound(low=0, below=1)] = 0.0
    present: Annotated[float, Bound(low=0.001, high=1)] = 1.0
    day: Annotated[float, Bound(low=1)] = DAY

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> DeviceTable:
        """Return the table of the devices."""
        return device_table(
            context, self.speed, self.download, self.upload, self.failure, self.present, self.day
        )
