"""MoFedSAM: FedCM whose clients take their gradients at the worst point nearby.

Qu, Li, Duan, Liu, Tang, Lu. Generalized Federated Learning via Sharpness Aware Minimization. ICML
2022. arXiv:2206.02618.

Family: sharpness. Exchanged: model; down, the server's last move. Local: nothing. Key: `rho`.

The server's direction is that of `fedcm`, the gradient that of `fedsam`. Running statistics of
batch normalisation move in both looks at a batch.
"""

from __future__ import annotations

from dataclasses import replace

from fl.api import BuildContext, Method, NonNegative, Positive, Share, declare, recipe, single_pass
from fl.blocks.path_length import check_sgd
from fl.blocks.server_direction import with_server_direction
from fl.blocks.sharpness import sharpness_aware


@declare("global", title="MoFedSAM", tasks="any")
class MoFedSAM:
    """FedSAM with momentum of the server in local steps.

    Attributes:
        rho: Distance at which the gradient is computed; 0 is FedCM.
        alpha: Weight of the client's own gradient; 1 is FedSAM.
        eta_g: Learning rate of the server.
    """

    rho: NonNegative = 0.1
    alpha: Share = 0.1
    eta_g: Positive = 1.0

    def build(self, context: BuildContext) -> Method:
        """Return FedCM with sharpness-aware gradients, algorithm 2."""
        check_sgd(context, "mofedsam")
        base = recipe(context)
        sharp = replace(base, passes=(sharpness_aware(single_pass(base), self.rho),))
        return with_server_direction(sharp, context, self.alpha, self.eta_g)
