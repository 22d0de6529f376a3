"""FedSAM: FedAvg whose clients step by the gradient at the worst point nearby.

Qu, Li, Duan, Liu, Tang, Lu. Generalized Federated Learning via Sharpness Aware Minimization. ICML
2022. arXiv:2206.02618.

Family: sharpness. Exchanged: model. Local: nothing. Key: `rho`.

Clients are weighted by their samples, where the paper's algorithm counts them alike (`weighting:
uniform`), and the server's rate is 1. As in the released code of Caldarola, Caputo and Ciccone
(ECCV 2022), running statistics of batch normalisation move in both looks at a batch. The reported
training loss is that of the perturbed weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fl.api import BuildContext, Method, NonNegative, declare, recipe, single_pass
from fl.blocks.sharpness import sharpness_aware


@declare("global", tasks="any")
class FedSAM:
    """FedAvg with sharpness-aware minimisation.

    Attributes:
        rho: Distance at which the gradient is computed; 0 is FedAvg.
        statistics: Passes that change statistics of batch normalisation: `both`, or the `first`
            (FedFA's code).
    """

    rho: NonNegative = 0.05
    statistics: Literal["both", "first"] = "both"

    def build(self, context: BuildContext) -> Method:
        """FedAvg on max f(w + e) over ||e|| <= rho, to first order."""
        base = recipe(context)
        return replace(
            base, passes=(sharpness_aware(single_pass(base), self.rho, self.statistics == "both"),)
        )
