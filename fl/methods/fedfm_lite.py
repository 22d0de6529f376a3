"""FedFM-Lite: FedFM in one phase a round, as anchors travel with the model.

Ye, Ni, Xu, Wang, Chen, Eldar. FedFM: Anchor-based Feature Matching for Data Heterogeneity in
Federated Learning. IEEE Transactions on Signal Processing 2023. arXiv:2210.07615.

Clients compute their anchors with the model that they just trained and send both, so that the
anchors of one round guide in the next. Otherwise as `fl.methods.fedfm`.
"""

from __future__ import annotations

from fl.api import Count, Method, NonNegative, Positive, Setting, cross_entropy, declare, recipe
from fl.parts.anchored import anchored_after
from fl.parts.anchors import Averaged, Guiding, averaged, guide


@declare("global", title="FedFM-Lite")
class FedFMLite:
    """lam: lambda, weight of the guiding loss.
    tau: its temperature.
    first: the first round that is guided.
    loss, anchors: as in FedFM.
    """

    lam: NonNegative = 50.0
    tau: Positive = 0.1
    first: Count = 21
    loss: Guiding = "contrastive"
    anchors: Averaged = "weighted"

    def build(self, setting: Setting) -> Method:
        """FedAvg with one more term, whose clients send anchors beside their models."""
        base = recipe(setting, terms=(cross_entropy, guide(self.lam, self.tau, self.loss)))
        return anchored_after(base, setting, averaged(self.anchors), self.first)
