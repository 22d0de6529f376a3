"""FML: each client has a private model and a copy of the shared one, which teach each other.

Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu. Federated Mutual Learning. 2020.
arXiv:2006.16765.

Family: distillation. Exchanged: model. Local: model. Key: `alpha`.

Both models see the same batches; each takes the other's probabilities as a fixed target. Here both
have one architecture. The divergence is the mean over samples of its sum over classes. PFLlib's and
HtFLlib's code divides by the number of classes as well, lets gradients flow into the teacher, and,
as started, trains the shared model without labels.
"""

from __future__ import annotations

from torch import Tensor

from fl.api import (
    BuildContext,
    Forward,
    Method,
    Output,
    Share,
    classification_loss,
    cross_entropy,
    declare,
)
from fl.blocks.private_model import divergence, with_private_model


@declare("global", "personal", title="FML")
class FML:
    """FedAvg and Local with mutual distillation.

    Attributes:
        alpha: Weight of the labels in the private model's loss; 1 is Local.
        beta: Weight of the labels in the shared model's loss; 1 is FedAvg.
    """

    alpha: Share = 0.5
    beta: Share = 0.5

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg and a private model, whose losses are a CE + (1 - a) KL(other || own)."""

        def loss(forward: Forward, private: Output) -> Tensor:
            batch, w, v = forward.batch, forward.output.outputs, private.outputs
            of_shared = self.beta * cross_entropy(forward) + (1 - self.beta) * divergence(
                v, w, batch
            )
            labels = classification_loss(v, batch)
            of_private = self.alpha * labels + (1 - self.alpha) * divergence(w, v, batch)
            return of_shared + of_private

        return with_private_model(context, loss)
