"""Equal devices: all clients compute and send alike, and are always there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fl.api import ALL_TASKS, BuildContext, DeviceTable, Positive


@dataclass(frozen=True)
class Equal:
    """Devices without differences.

    Attributes:
        speed: floating-point operations a second.
        download: bytes a second from the server.
        upload: bytes a second to the server.
    """

    speed: Positive = 1e10
    download: Positive = 2.5e6
    upload: Positive = 1.25e6

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> DeviceTable:
        """Return the table of the devices."""
        ones = np.ones(context.clients)
        return DeviceTable(self.speed * ones, self.download * ones, self.upload * ones, 0 * ones)
