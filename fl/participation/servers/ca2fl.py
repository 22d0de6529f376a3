"""CA2FL: FedBuff that replaces an absent client's change by the last one it sent.

Wang, Cao, Wu, Chen, Chen. Tackling the Data Heterogeneity in Asynchronous Federated Learning with
Cached Update Calibration. ICLR 2024.

Algorithm 2: v = h + mean(Delta_i - h_i) over the uploads in the buffer, where h_i is client i's
last change, zero before its first, and h is the mean of the h_i over all N clients. The learning
rate eta of the server is that of the method. Uploads have the weights of `weighting`, and h equal
ones; the paper has equal ones everywhere. Clients held out of training count among the N. The
server keeps N numbers for each weight, and copies them at each update; the paper's quantized cache
is left out.

In ten updates from the same uploads, the version in a fork of FLGo (quan-xiao158/easyFL) gives the
same weights. That of AFL-Lib adds the mean of all clients' last changes, those in the buffer
included, and no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fl.api import ALL_TASKS, ArrivedUploads, AsynchronousServer, BuildContext, Count, Tree


@dataclass(frozen=True)
class CA2FL:
    """Cache-aided asynchronous federated learning.

    Attributes:
        size: M, uploads in the buffer when the server makes its next version.
        concurrency: clients that train at once.
    """

    size: Count = 10
    concurrency: Count = 20

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> AsynchronousServer:
        """Return the server."""
        return AsynchronousServer(calibrated, self.size, self.concurrency, empty_cache)


def empty_cache(clients: int, row: Tensor) -> Tree:
    """Return the last changes of all clients, [clients, d], and their mean, [d]: zeros."""
    return {"changes": row.new_zeros(clients, len(row)), "mean": torch.zeros_like(row)}


def calibrated(arrived: ArrivedUploads) -> tuple[Tensor, Tree]:
    """Return h + Delta_i - h_i of each client i, [K, d], and the next cache."""
    cache, mean, rows = arrived.memory["changes"], arrived.memory["mean"], arrived.rows
    news = rows - cache[arrived.clients].to(rows.device)
    following = {
        "changes": cache.index_copy(0, arrived.clients, rows.to(cache)),
        "mean": mean + news.sum(0).to(mean) / arrived.count,
    }
    return arrived.with_own_statistics(mean.to(rows) + news), following
