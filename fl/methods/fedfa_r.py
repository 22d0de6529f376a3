"""FedFA-R: channel statistics of features are moved at random, every channel's alike.

Zhou, Konukoglu. FedFA: Federated Feature Augmentation. ICLR 2023. arXiv:2301.12995: the control of
FedFA, which knows nothing of how statistics vary.
"""

from __future__ import annotations

from torch import Tensor

from fl.api import Batch, Method, NonNegative, Setting, Share, declare, recipe
from fl.parts.augmented_layers import drawn
from fl.parts.feature_statistics import moments, restyled


@declare("global", title="FedFA-R", tasks="any")
class FedFAR:
    """layers, p: as in FedFA.
    sd: deviation of the normal noise that is added to the means and the deviations of channels (0.3
        as in an earlier version of the authors' code).
    """

    layers: tuple[str, ...] = ()
    p: Share = 0.5
    sd: NonNegative = 0.3

    def build(self, setting: Setting) -> Method:
        """FedAvg whose clients augment features."""

        def change(x: Tensor, noise: Tensor, batch: Batch) -> Tensor:
            mean, sd = moments(x)
            return restyled(x, mean, sd, mean + self.sd * noise[0], sd + self.sd * noise[1])

        return recipe(drawn(setting, self.layers, self.p, change))
