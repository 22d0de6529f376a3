"""FedBN: batch normalisation, weights and statistics, stays with the client.

Li, Jiang, Zhang, Kamp, Dou. FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization. ICLR 2021. arXiv:2102.07623.

Family: personal layers. Exchanged: all but batch normalisation. Local: batch normalisation. Key:
none.
"""

from __future__ import annotations

from fl.api import BuildContext, FedloomError, Method, declare, recipe, weights_in


@declare("personal", tasks="any")
class FedBN:
    """FedBN (algorithm 1), without hyper-parameters of its own."""

    def build(self, context: BuildContext) -> Method:
        """FedAvg over everything but batch normalisation."""
        if not context.network.batch_norm:
            raise FedloomError("fedbn: the model has no batch normalisation to keep local")
        return recipe(context, local=weights_in(context.network.batch_norm))
