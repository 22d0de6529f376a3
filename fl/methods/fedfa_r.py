"""FedFA-R: channel statistics of features are moved at random, every channel's alike.

Zhou, Konukoglu. FedFA: Federated Feature Augmentation. ICLR 2023. arXiv:2301.12995: the control of
FedFA, which knows nothing of how statistics vary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fl.api.method import Method, Setting
from fl.api.recipe import recipe
from fl.api.task import ANY
from fl.api.term import Batch
from fl.base.fields import NonNegative, Share
from fl.base.schema import GLOBAL
from fl.parts.augmented_layers import drawn
from fl.parts.feature_statistics import moments, restyled


@dataclass(frozen=True)
class FedFAR:
    """layers, p: as in FedFA.
    sd: deviation of the normal noise that is added to the means and the deviations of channels (0.3
        as in an earlier version of the authors' code).
    """

    layers: tuple[str, ...] = ()
    p: Share = 0.5
    sd: NonNegative = 0.3

    title: ClassVar = "FedFA-R"
    stages: ClassVar = (GLOBAL,)
    tasks: ClassVar = ANY
    short: ClassVar[dict[str, Any]] = {"layers": ["0", "4"], "p": 0.8}

    def build(self, setting: Setting) -> Method:
        """FedAvg whose clients augment features."""

        def change(x: Tensor, noise: Tensor, batch: Batch) -> Tensor:
            mean, sd = moments(x)
            return restyled(x, mean, sd, mean + self.sd * noise[0], sd + self.sd * noise[1])

        return recipe(drawn(setting, self.layers, self.p, change))
