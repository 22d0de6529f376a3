"""FedFM's feature matching, added to any method: anchors of all clients guide features.

Ye, Ni, Xu, Wang, Chen, Eldar. FedFM: Anchor-based Feature Matching for Data Heterogeneity in
Federated Learning. IEEE Transactions on Signal Processing 2023. arXiv:2210.07615.

The method `fedfm` is FedAvg with this term; its notes on anchors hold here, too. Anchors are those
of the shared model, completed by the weights that stay with the client; without a shared model,
they are those of the client's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fl.api import BuildContext, Count, Method, MethodTerm, NonNegative, Positive
from fl.blocks.anchor_exchange import anchors_after_training, anchors_before_training
from fl.blocks.anchors import AnchorAverage, GuidingLoss, anchor_average, guiding_term


@dataclass(frozen=True)
class Matching:
    """The guiding loss of FedFM, and the anchors for it.

    Attributes:
        lam: lambda, weight of the guiding loss.
        tau: its temperature.
        first: the first round with guidance.
        loss: `contrastive` (CG) or `squared` (l2) distance to the anchor of the sample's class.
        anchors: `weighted` by clients' samples of the class, or `uniform` over clients.
        lite: whether anchors travel with the models, so that they are those of the previous round.
    """

    lam: NonNegative = 50.0
    tau: Positive = 0.1
    first: Count = 21
    loss: GuidingLoss = "contrastive"
    anchors: AnchorAverage = "weighted"
    lite: bool = False

    title: ClassVar = "FedFM"

    def build(self, context: BuildContext) -> MethodTerm:
        """Return the guiding loss, and a function that adds anchors to the server."""
        attached = anchors_after_training if self.lite else anchors_before_training

        def attach(method: Method) -> Method:
            return attached(method, context, anchor_average(self.anchors), self.first)

        return MethodTerm(guiding_term(self.lam, self.tau, self.loss), attach)
