"""FedSpeed: sharpness-aware local steps with a dual variable against the client's drift.

Sun, Shen, Huang, Ding, Tao. FedSpeed: Larger Local Interval, Less Communication Round, and Higher
Generalization Accuracy. ICLR 2023. arXiv:2302.10429.

Family: sharpness. Exchanged: model. Local: dual variable. Key: `rho`.

As in the paper's algorithm, the server averages what the round's clients send, and clients count
alike. The authors' code (woodenchild95/FL-Simulator, 502bec6) adds the mean of the dual variables
of all clients, also those that did not take part. Running statistics of batch normalisation move in
every look at a batch.
"""

from __future__ import annotations

from dataclasses import replace

from fl.api import BuildContext, Method, NonNegative, Share, declare, recipe, single_pass
from fl.blocks.dual_correction import with_dual_correction
from fl.blocks.sharpness import sharpness_aware


@declare("global", title="FedSpeed", tasks="any")
class FedSpeed:
    """FedAvg with perturbed gradients and a prox-correction.

    Attributes:
        rho: Distance of the perturbed point.
        alpha: Weight of the perturbed gradient; the gradient at w has the rest (the code: 1).
        lam: Weight of the proximal term and its correction, the paper's 1/lambda.
    """

    rho: NonNegative = 0.1
    alpha: Share = 1.0
    lam: NonNegative = 0.1

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg along (1 - alpha) g(w) + alpha g(w~) + lam (w - w^t + u_k)."""
        base = recipe(context)
        sharp = sharpness_aware(single_pass(base), self.rho, share=self.alpha)
        return with_dual_correction(replace(base, passes=(sharp,)), context, self.lam)
