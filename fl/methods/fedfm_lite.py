"""FedFM-Lite: FedFM in one exchange a round, as anchors travel with the model.

Ye, Ni, Xu, Wang, Chen, Eldar. FedFM: Anchor-based Feature Matching for Data Heterogeneity in
Federated Learning. IEEE Transactions on Signal Processing 2023. arXiv:2210.07615.

Clients compute their anchors with the model that they just trained and send both, so that the
anchors of one round guide in the next. Otherwise as `fl.methods.fedfm`.
"""

from __future__ import annotations

from typing import ClassVar

from fl.method import Method, Setting
from fl.methods.fedfm import FedFM
from fl.parts.anchored import anchored_after
from fl.parts.anchors import averaged


class FedFMLite(FedFM):
    """FedFM whose anchors are one round old."""

    title: ClassVar = "FedFM-Lite"

    def build(self, setting: Setting) -> Method:
        """FedAvg with one more term, whose clients send anchors beside their models."""
        return anchored_after(self.guided(setting), setting, averaged(self.anchors), self.first)
