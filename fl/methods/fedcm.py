"""FedCM: every local step goes partly along the direction in which the server moved last.

Xu, Wang, Wang, Yao. FedCM: Federated Learning with Client-level Momentum. 2021. arXiv:2106.10874.

Family: drift. Exchanged: model; down, the server's last move. Local: nothing. Key: `alpha`.

The server's move is divided by the mean length of the clients' paths, which is the number of steps
times the rate for plain SGD at a constant rate, as in the paper, and right for momentum as well.
Clients are weighted as in FedAvg. The direction is 0 in the first round, so that its steps are
alpha times as long as those of FedAvg.
"""

from __future__ import annotations

from fl.api import BuildContext, Method, Positive, Share, declare, recipe
from fl.blocks.path_length import check_sgd
from fl.blocks.server_direction import with_server_direction


@declare("global", title="FedCM", tasks="any")
class FedCM:
    """FedAvg whose clients step along alpha g + (1 - alpha) D.

    Attributes:
        alpha: Weight of the client's own gradient g; 1 is FedAvg.
        eta_g: Learning rate of the server.
    """

    alpha: Share = 0.1
    eta_g: Positive = 1.0

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg with a direction D that the server sends, algorithm 2."""
        check_sgd(context, "fedcm")
        return with_server_direction(recipe(context), context, self.alpha, self.eta_g)
