"""FedGAMMA: SCAFFOLD whose clients take their gradients at the worst point nearby.

Dai, Yang, Sun, Shen, Tian, Wang, Zhang. FedGAMMA: Federated Learning with Global Sharpness-Aware
Minimization. IEEE Transactions on Neural Networks and Learning Systems 2023.

Family: sharpness. Exchanged: model, control variate. Local: control variate. Key: `rho`.

Control variates are those of `scaffold`, the gradient that of `fedsam`. Running statistics of batch
normalisation move in both looks at a batch. FL-Simulator's code (502bec6) divides by the number of
steps of the first client for all clients; here each has its own.
"""

from __future__ import annotations

from dataclasses import replace

from fl.api import BuildContext, Method, NonNegative, Positive, declare, recipe, single_pass
from fl.blocks.control_variates import with_control_variates
from fl.blocks.path_length import check_sgd
from fl.blocks.sharpness import sharpness_aware


@declare("global", title="FedGAMMA", tasks="any")
class FedGAMMA:
    """FedSAM with control variates.

    Attributes:
        rho: Distance at which the gradient is computed; 0 is SCAFFOLD.
        eta_g: Learning rate of the server.
    """

    rho: NonNegative = 0.1
    eta_g: Positive = 1.0

    def build(self, context: BuildContext) -> Method:
        """Return SCAFFOLD on sharpness-aware gradients."""
        check_sgd(context, "fedgamma")
        base = recipe(context)
        sharp = replace(base, passes=(sharpness_aware(single_pass(base), self.rho),))
        return with_control_variates(sharp, context, self.eta_g, context.training.momentum)
