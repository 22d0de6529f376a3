"""FedBN: batch normalisation, weights and statistics, stays with the client.

Li, Jiang, Zhang, Kamp, Dou. FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization. ICLR 2021. arXiv:2102.07623.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fl.api.method import Method, Setting
from fl.api.recipe import recipe, within
from fl.api.task import ANY
from fl.base.errors import FedloomError
from fl.base.schema import PERSONAL


@dataclass(frozen=True)
class FedBN:
    """FedBN (algorithm 1) has no hyper-parameters of its own."""

    stages: ClassVar = (PERSONAL,)
    tasks: ClassVar = ANY

    def build(self, setting: Setting) -> Method:
        """FedAvg over everything but batch normalisation."""
        if not setting.network.batch_norm:
            raise FedloomError("fedbn: the model has no batch normalisation to keep local")
        return recipe(setting, local=within(setting.network.batch_norm))
