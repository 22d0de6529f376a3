"""FedAsync: the server mixes each model that arrives into its own, an old one with less weight.

Xie, Koyejo, Gupta. Asynchronous Federated Optimization. OPT workshop at NeurIPS 2020.
arXiv:1903.03934.

Algorithm 1: x_t = (1 - alpha_t) x_(t-1) + alpha_t x_new, where alpha_t = alpha s(t - tau) and s is
constant, hinge or polynomial (section 5.2). The proximal term of the paper's clients is that of the
method `fedprox`; with `fedavg` they have none. The paper draws each staleness at random; here it
follows from devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

from torch import Tensor

from fl.api import (
    ALL_TASKS,
    ArrivedUploads,
    AsynchronousServer,
    Bound,
    BuildContext,
    Count,
    NonNegative,
    Tree,
    staleness_factor,
)


@dataclass(frozen=True)
class FedAsync:
    """Asynchronous federated optimization.

    Attributes:
        concurrency: clients that train at once.
        alpha: share of a new model in the next version, without staleness.
        staleness: how much less an old model counts: `constant`: not at all; `hinge`: 1 up to b
            versions, 1 / (a (staleness - b) + 1) above; `polynomial`: (1 + staleness)^-a.
        a: how fast it falls; the paper: 10 for `hinge`, .5 for `polynomial`.
        b: versions without effect, for `hinge`.
    """

    concurrency: Count = 20
    alpha: Annotated[float, Bound(above=0, high=1)] = 0.6
    staleness: Literal["constant", "hinge", "polynomial"] = "polynomial"
    a: NonNegative = 0.5
    b: NonNegative = 4.0

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> AsynchronousServer:
        """Return the server."""
        change = partial(mixed, alpha=self.alpha, name=self.staleness, a=self.a, b=self.b)
        return AsynchronousServer(change, 1, self.concurrency)


def mixed(
    arrived: ArrivedUploads, alpha: float, name: str, a: float, b: float
) -> tuple[Tensor, Tree]:
    """Return alpha_t (x_new - x_(t-1)) for each arrived model x_new, [K, d]."""
    share = alpha * staleness_factor(name, arrived.staleness, a, b)
    return share.to(arrived.rows.dtype)[:, None] * arrived.distances, arrived.memory
