"""FedBuff: the server takes the mean of the first uploads that arrive, whatever their age.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba. Federated Learning with Buffered Asynchronous
Aggregation. AISTATS 2022. arXiv:2106.06639.

Algorithm 1. The server's learning rate is that of the method: `fedavg` has 1, `fedavgm` without
momentum its `eta`. Weights of clients are those of `weighting`, where the paper has equal ones. The
paper's staleness scaling divides an upload by (1 + staleness)^.5; the mean is over the number of
uploads, so that a buffer of old ones makes a shorter step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from torch import Tensor

from fl.api import (
    ALL_TASKS,
    ArrivedUploads,
    AsynchronousServer,
    BuildContext,
    Count,
    NonNegative,
    Tree,
    staleness_factor,
)


@dataclass(frozen=True)
class FedBuff:
    """Buffered asynchronous aggregation.

    Attributes:
        size: K, uploads in the buffer when the server makes its next version.
        concurrency: clients that train at once.
        staleness: how much less an old upload counts: `constant`: not at all; `polynomial`:
            (1 + staleness)^-a.
        a: exponent of `polynomial`.
    """

    size: Count = 10
    concurrency: Count = 20
    staleness: Literal["constant", "polynomial"] = "polynomial"
    a: NonNegative = 0.5

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> AsynchronousServer:
        """Return the server."""
        change = partial(scaled_changes, name=self.staleness, a=self.a)
        return AsynchronousServer(change, self.size, self.concurrency)


def scaled_changes(arrived: ArrivedUploads, name: str, a: float) -> tuple[Tensor, Tree]:
    """Return each client's change times its staleness factor, [K, d]."""
    factor = staleness_factor(name, arrived.staleness, a).to(arrived.rows.dtype)
    return arrived.with_own_statistics(arrived.rows * factor[:, None]), arrived.memory
