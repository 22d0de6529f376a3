"""Log-normal devices: speed and bandwidth have a median and a spread.

F. Lai, Y. Dai, S. Singapuram, J. Liu, X. Zhu, H. Madhyastha, M. Chowdhury. FedScale: Benchmarking
Model and System Performance of Federated Learning at Scale. ICML 2022.

Its code has times of computation with a sigma of 0.6 in place of a trace. Half of the clients are
slower than the median; the mean is exp(sigma^2 / 2) times it. A client has one connection: its
downloads and uploads are faster or slower than the median by one factor, and independent of its
speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fl.api import ALL_TASKS, Bound, BuildContext, DeviceTable, NonNegative, Positive
from fl.blocks.device_draws import DAY, DOWNLOAD, SPEED, UPLOAD, device_table, log_normal_factors


@dataclass(frozen=True)
class LogNormal:
    """Devices whose logarithms of speed and bandwidth are normally distributed.

    Attributes:
        speed: Median of the floating-point operations a second.
        speed_sigma: Standard deviation of the natural logarithm of the speed.
        download: Median of the bytes a second from the server.
        upload: Median of the bytes a second to the server.
        bandwidth_sigma: Standard deviation of the natural logarithm of both bandwidths.
        failure: Probability that a client breaks off in a round.
        present: Share of each day in which a client is there, from a time of day on that is drawn.
        day: Seconds of a day; of a small model, many rounds take place in a real one.
    """

    speed: Positive = SPEED
    speed_sigma: NonNegative = 0.6
    download: Positive = DOWNLOAD
    upload: Positive = UPLOAD
    bandwidth_sigma: NonNegative = 0.6
    failure: Annotated[float, Bound(low=0, below=1)] = 0.0
    present: Annotated[float, Bound(low=0.001, high=1)] = 1.0
    day: Annotated[float, Bound(low=1)] = DAY

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> DeviceTable:
        """Return the table of the devices."""
        speeds = log_normal_factors(context, "speed", self.speed_sigma)
        bandwidths = log_normal_factors(context, "bandwidth", self.bandwidth_sigma)
        return device_table(
            context,
            self.speed * speeds,
            self.download * bandwidths,
            self.upload * bandwidths,
            self.failure,
            self.present,
            self.day,
        )
