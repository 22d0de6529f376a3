"""FedFA^l: features are augmented as much as their channel statistics vary over clients.

Zhou, Konukoglu. FedFA: Federated Feature Augmentation. ICLR 2023. arXiv:2301.12995. FedFA^l of
Zhou, Yuan, Wang, Konukoglu. Federated Feature Augmentation and Alignment. IEEE TPAMI 2024.

A variance over clients is that of each channel, as in the papers; the released code takes one
variance over clients and channels together, so that every channel weighs 1. As in that code and not
in the papers, variances over space and batch are unbiased, and running means move only when a batch
is augmented. Here models are averaged by samples; in the code every client counts alike.
"""

from __future__ import annotations

from fl.api import Method, Setting, Share, declare, recipe
from fl.parts.augmented_layers import Fusion, exchanged, federated


@declare("global", title="FedFA^l", tasks="any")
class FedFA:
    """layers: names of the model's modules after which features are augmented; they give images.
    p: probability that a batch is augmented, drawn for each layer apart.
    statistics_momentum: of the running means of statistics.
    fusion: a channel's variance is multiplied by 1 plus its weight among channels (`adaptive`), or
        by 1 plus its variance over clients (`direct`, for which the papers give no formula).
    """

    layers: tuple[str, ...] = ()
    p: Share = 0.5
    statistics_momentum: Share = 0.99
    fusion: Fusion = "adaptive"

    def build(self, setting: Setting) -> Method:
        """FedAvg whose clients augment features, and send the statistics of those that they saw."""
        base = recipe(federated(setting, self.layers, self.p, self.statistics_momentum))
        return exchanged(base, setting, self.layers, self.fusion)
