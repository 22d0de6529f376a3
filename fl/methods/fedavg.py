"""FedAvg: clients train the shared model locally, the server averages what they send.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017. arXiv:1602.05629.

Family: aggregation. Exchanged: model. Local: nothing. Key: none.

Differences from the paper: batches are drawn afresh each round from the client's own order; running
statistics of batch normalisation are averaged like weights; the last batch of an epoch is filled up
with other samples of the client, which count for the statistics of batch normalisation and not for
the loss, where a loader of PyTorch gives a smaller batch; `drop_last` leaves that batch out.
"""

from __future__ import annotations

from fl.api import BuildContext, Method, declare, recipe


@declare("global", tasks="any", modalities=True)
class FedAvg:
    """FedAvg (algorithm 1), without hyper-parameters beyond those of training."""

    def build(self, context: BuildContext) -> Method:
        """The sample-weighted mean of locally trained models."""
        return recipe(context)
