"""FedLC: each client lowers its logits by a margin that is larger for its rare classes.

Zhang, Li, Li, Xu, Wu, Ding, Wu. Federated Learning with Label Distribution Skew via Logits
Calibration. ICML 2022. arXiv:2209.00189.

Family: classifier. Exchanged: model. Local: nothing. Key: `tau`.

The margin depends on the client's own numbers of samples. The paper prints the loss without the
true class in the denominator; with it, the loss is a cross-entropy, as in the released codes that
were compared. A class without a sample is left out of the client's softmax.
"""

from __future__ import annotations

from functools import partial

from fl.api import BuildContext, Method, NonNegative, declare, recipe
from fl.blocks.calibration import calibrated_loss, margin_logits, with_class_counts


@declare("global", modalities=True)
class FedLC:
    """FedAvg with calibrated logits.

    Attributes:
        tau: Size of the margin tau n_c^(-1/4). Clients with equally many samples of every class
            train as in FedAvg.
    """

    tau: NonNegative = 1.0

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg with the cross-entropy of calibrated logits."""
        loss = calibrated_loss(partial(margin_logits, tau=self.tau))
        return with_class_counts(recipe(context, terms=(loss,)))
