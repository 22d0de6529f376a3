"""SCAFFOLD: control variates on both sides correct the drift of local steps.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning. ICML 2020. arXiv:1910.06378.

Family: drift. Exchanged: model, control variate. Local: control variate. Key: `eta_g`.

Control variates follow option II of algorithm 1. K eta is replaced by the sum of the weights that
the gradients of a round have in what the client moved. For plain SGD at a constant rate that is K
eta. With momentum it is still right, where K eta is too small by up to 1 / (1 - momentum).
"""

from __future__ import annotations

from typing import Literal

from fl.api import BuildContext, Method, Positive, declare, recipe
from fl.blocks.control_variates import with_control_variates
from fl.blocks.path_length import check_sgd


@declare("global", title="SCAFFOLD", tasks="any")
class Scaffold:
    """FedAvg with control variates.

    Attributes:
        eta_g: The server's learning rate.
        divisor: Divisor of a client's change: the length of its `path`, or K eta, its `steps` times
            the rate (code of MOON and FedFM, whose steps have momentum .9).
    """

    eta_g: Positive = 1.0
    divisor: Literal["path", "steps"] = "path"

    def build(self, context: BuildContext) -> Method:
        """FedAvg on gradients g + c - c_k; the server's tree has c, the client's c_k."""
        check_sgd(context, "scaffold")
        # Without momentum a path is as long as its steps times the rate.
        momentum = context.training.momentum if self.divisor == "path" else 0.0
        return with_control_variates(recipe(context), context, self.eta_g, momentum)
