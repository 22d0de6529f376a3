"""FedRS: each client weakens, in its softmax, the logits of classes that it does not have.

Li, Zhan. FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data. KDD
2021.

Family: classifier. Exchanged: model. Local: nothing. Key: `alpha`.
"""

from __future__ import annotations

from functools import partial

from fl.api import BuildContext, Method, Share, declare, recipe
from fl.blocks.calibration import calibrated_loss, restricted_logits, with_class_counts


@declare("global", modalities=True)
class FedRS:
    """FedAvg with a restricted softmax.

    Attributes:
        alpha: Factor of the logits of classes that a client lacks; 1 is FedAvg.
    """

    alpha: Share = 0.5

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg with the cross-entropy of restricted logits."""
        loss = calibrated_loss(partial(restricted_logits, alpha=self.alpha))
        return with_class_counts(recipe(context, terms=(loss,)))
