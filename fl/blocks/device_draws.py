"""Draws of clients' devices, and tables of them.

Every client's numbers are drawn in the order of clients, so that those of the first clients do not
depend on the number of clients.
"""

from __future__ import annotations

import numpy as np

from fl.api.method import BuildContext
from fl.api.participation import DeviceTable, Presence
from fl.base import rng

DAY = 86_400.0
"""Seconds after which the times repeat at which clients are there."""

SPEED = 1e10
"""Floating-point operations a second of a middling device."""
DOWNLOAD = 2.5e6
"""Its bytes a second from the server."""
UPLOAD = 1.25e6
"""Its bytes a second to the server."""


def uniform_draws(context: BuildContext, purpose: str) -> np.ndarray:
    """Return a number from 0 to 1 for each client, float64 [clients]."""
    return rng.generator(context.seed, "devices", purpose).random(context.clients)


def log_normal_factors(context: BuildContext, purpose: str, sigma: float) -> np.ndarray:
    """Return log-normal factors of median 1, float64 [clients].

    Args:
        context: What the devices are drawn for.
        purpose: Key of the random numbers.
        sigma: Standard deviation of the factors' natural logarithms.
    """
    generator = rng.generator(context.seed, "devices", purpose)
    factors: np.ndarray = np.exp(sigma * generator.standard_normal(context.clients))
    return factors


def device_table(
    context: BuildContext,
    speed: np.ndarray | float,
    download: np.ndarray | float,
    upload: np.ndarray | float,
    failure: float,
    present: float,
    day: float,
) -> DeviceTable:
    """Return the devices of all clients.

    Args:
        context: What the devices are drawn for.
        speed: Floating-point operations a second, [clients] or equal for all.
        download: Bytes a second from the server, likewise.
        upload: Bytes a second to the server, likewise.
        failure: Probability that a client breaks off in a round.
        present: Share of each day in which a client is there, see `daily_presence`.
        day: Seconds of a day.
    """
    columns = {"speed": speed, "download": download, "upload": upload, "failure": failure}
    of_clients = {
        name: np.broadcast_to(np.asarray(column, np.float64), (context.clients,))
        for name, column in columns.items()
    }
    return DeviceTable(**of_clients, presence=daily_presence(context, present, day))


def daily_presence(context: BuildContext, share: float, day: float) -> Presence | None:
    """Return when clients are there that are there once a day, from a drawn time of day on.

    Args:
        context: What the times are drawn for.
        share: Share of the day in which a client is there; 1: always, for which None is returned.
        day: Seconds of a day.
    """
    if share == 1:
        return None
    begin = day * uniform_draws(context, "presence")
    end = begin + share * day
    # What lasts beyond the end of the day is an interval at its beginning, too.
    late = np.flatnonzero(end > day)
    clients = np.concatenate([np.arange(context.clients), late])
    order = np.argsort(clients, kind="stable")
    return Presence(
        clients[order],
        np.concatenate([begin, np.zeros(len(late))])[order],
        np.concatenate([np.minimum(end, day), end[late] - day])[order],
        day,
    )
