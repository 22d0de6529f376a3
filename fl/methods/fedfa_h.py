"""FedFA^h: histograms of features are held to those over all clients.

Zhou, Yuan, Wang, Konukoglu. Federated Feature Augmentation and Alignment. IEEE TPAMI 2024.

No code of it is released, and we had slides of the paper: what they leave open is decided here.
Features are what goes into the classifier; of a model without one, such as U-Net, they are what its
last block gives, and each pixel counts as a sample. The logistic function brings them into the
range of the bins. The soft bins and their temperature are those of Eastwood et al. (ICLR 2022). The
divergence is the mean over channels, where the slides' notation adds channels up; lambda takes in
the constant. The histogram of all clients is their plain mean (weighted by samples where the task
counts no classes), from the round before.
"""

from __future__ import annotations

from typing import Annotated

from fl.api import Bound, Method, NonNegative, Positive, Setting, declare, recipe, task_loss
from fl.parts.aligned_features import align, aligned, check_batches


@declare("global", title="FedFA^h", tasks="any")
class FedFAH:
    """lam: lambda, weight of the divergence.
    bins: of a channel's histogram.
    tau: how soft their edges are, in the range from 0 to 1.
    """

    lam: NonNegative = 0.1
    bins: Annotated[int, Bound(low=2)] = 8
    tau: Positive = 0.01

    def build(self, setting: Setting) -> Method:
        """FedAvg with one more term, whose clients send histograms beside their models."""
        check_batches(setting, "fedfa-h")
        terms = (task_loss, align(setting, self.lam, self.bins, self.tau))
        return aligned(recipe(setting, terms=terms), setting, self.bins, self.tau)
