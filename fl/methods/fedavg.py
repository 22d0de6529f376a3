"""FedAvg: clients train the shared model locally, the server averages what they send.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017. arXiv:1602.05629.

Differences from the paper: batches are drawn afresh each round from the client's own order; running
statistics of batch normalisation are averaged like weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fl.api.method import Method, Setting
from fl.api.recipe import recipe
from fl.api.task import ANY
from fl.base.schema import GLOBAL


@dataclass(frozen=True)
class FedAvg:
    """FedAvg (algorithm 1) has no hyper-parameters beyond those of training."""

    stages: ClassVar = (GLOBAL,)
    tasks: ClassVar = ANY
    modalities: ClassVar = True

    def build(self, setting: Setting) -> Method:
        """The sample-weighted mean of locally trained models."""
        return recipe(setting)
