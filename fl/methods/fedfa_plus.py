"""FedFA+: FedFA^l and FedFA^h at once, features augmented and their histograms aligned.

Zhou, Yuan, Wang, Konukoglu. Federated Feature Augmentation and Alignment. IEEE TPAMI 2024.

See `fl.methods.fedfa` and `fl.methods.fedfa_h` for what differs from the paper.
"""

from __future__ import annotations

from typing import Annotated

from fl.api import Bound, Method, NonNegative, Positive, Setting, Share, declare, recipe, task_loss
from fl.parts.aligned_features import align, aligned, check_batches
from fl.parts.augmented_layers import Fusion, exchanged, federated


@declare("global", title="FedFA+", tasks="any")
class FedFAPlus:
    """layers, p, statistics_momentum, fusion: as in FedFA^l.
    lam, bins, tau: as in FedFA^h.
    """

    layers: tuple[str, ...] = ()
    p: Share = 0.5
    statistics_momentum: Share = 0.99
    fusion: Fusion = "adaptive"
    lam: NonNegative = 0.1
    bins: Annotated[int, Bound(low=2)] = 8
    tau: Positive = 0.01

    def build(self, setting: Setting) -> Method:
        """FedAvg whose clients augment features, align them, and send the statistics of both."""
        check_batches(setting, "fedfa-plus")
        augmenting = federated(setting, self.layers, self.p, self.statistics_momentum)
        base = recipe(augmenting, terms=(task_loss, align(setting, self.lam, self.bins, self.tau)))
        sharing = exchanged(base, setting, self.layers, self.fusion)
        return aligned(sharing, setting, self.bins, self.tau)
