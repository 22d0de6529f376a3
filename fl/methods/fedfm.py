"""FedFM: features are guided to anchors, the mean feature of every class over all clients.

Ye, Ni, Xu, Wang, Chen, Eldar. FedFM: Anchor-based Feature Matching for Data Heterogeneity in
Federated Learning. IEEE Transactions on Signal Processing 2023. arXiv:2210.07615.

Family: class means. Exchanged: model, mean features by class. Local: nothing. Key: `lam`.

A round has two phases: the shared model goes out and anchors of its features come back; then the
anchors go out and models come back. As in the released code, features are what goes into the
classifier, in evaluation mode for anchors, and both sides of the contrastive loss are normalised to
length 1.

Other than there, a round's anchors are of its own clients, not of those of the round before. A
class without an anchor is left out, not compared with a zero. `squared` is ||z - a_y||^2, where the
released code normalises both and divides by the number of features. `uniform` is over the clients
that hold the class; there, a client without it counts with the old anchor.

FedFM-Lite (``lite: true``) has one phase a round: clients compute anchors with the model that they
just trained and send both, so that the anchors of one round guide in the next.
"""

from __future__ import annotations

from fl.api import (
    BuildContext,
    Count,
    Method,
    NonNegative,
    Positive,
    cross_entropy,
    declare,
    recipe,
)
from fl.blocks.anchor_exchange import anchors_after_training, anchors_before_training
from fl.blocks.anchors import AnchorAverage, GuidingLoss, anchor_average, guiding_term


@declare("global")
class FedFM:
    """FedAvg with features that are guided to anchors of their class.

    Attributes:
        lam: Weight lambda of the guiding loss (default of the released code, as for `tau` and
            `first`).
        tau: Temperature of the contrastive loss.
        first: First round with the guiding loss.
        loss: Guiding loss: `contrastive` (CG), or `squared` (l2) distance to the anchor of the
            sample's class.
        anchors: Weights of clients in an anchor: their numbers of samples of the class, or equal
            weights.
        lite: Whether clients send anchors together with models, so that anchors are one round old.
    """

    lam: NonNegative = 50.0
    tau: Positive = 0.1
    first: Count = 21
    loss: GuidingLoss = "contrastive"
    anchors: AnchorAverage = "weighted"
    lite: bool = False

    def build(self, context: BuildContext) -> Method:
        """FedAvg with one more term, and anchors for it on the server."""
        base = recipe(context, terms=(cross_entropy, guiding_term(self.lam, self.tau, self.loss)))
        attached = anchors_after_training if self.lite else anchors_before_training
        return attached(base, context, anchor_average(self.anchors), self.first)
