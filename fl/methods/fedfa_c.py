"""FedFA-C: features are augmented as much as their channel statistics vary within the batch.

Zhou, Konukoglu. FedFA: Federated Feature Augmentation. ICLR 2023. arXiv:2301.12995: what is left of
FedFA where clients tell each other nothing of their features.
"""

from __future__ import annotations

from torch import Tensor

from fl.api import Batch, Method, NonNegative, Setting, Share, declare, recipe
from fl.parts.augmented_layers import drawn
from fl.parts.feature_statistics import augment


@declare("global", title="FedFA-C", tasks="any")
class FedFAC:
    """layers, p: as in FedFA.
    factor: by how many deviations over the batch a statistic moves (an earlier version of the
        authors' code: 0.5; as FedFA without the other clients: 1).
    """

    layers: tuple[str, ...] = ()
    p: Share = 0.5
    factor: NonNegative = 0.5

    def build(self, setting: Setting) -> Method:
        """FedAvg whose clients augment features."""

        def change(x: Tensor, noise: Tensor, batch: Batch) -> Tensor:
            gamma = x.new_full((x.shape[1],), self.factor**2 - 1)
            return augment(x, noise[0], noise[1], gamma, gamma, weight=batch["weight"])

        return recipe(drawn(setting, self.layers, self.p, change))
