"""FedPer: a shared body, and a head of each client's own, trained together.

Arivazhagan, Aggarwal, Singh, Choudhary. Federated Learning with Personalization Layers. 2019.
arXiv:1912.00818.

Family: personal layers. Exchanged: body. Local: head. Key: `layers`.

Running statistics of batch normalisation go with their layer: those of the body are averaged. The
paper says nothing about them. A client that was never drawn has the initial head on a trained body.
"""

from __future__ import annotations

from dataclasses import replace

from fl.api import BuildContext, Method, declare, personal_model, recipe, weights_in
from fl.blocks.layer_weights import weights_of_layers


@declare("personal", tasks=("classification", "regression"), modalities=True)
class FedPer:
    """FedAvg whose clients keep the top of the model.

    Attributes:
        layers: Names of the layers that stay with the client; null: the head. The paper keeps 1 to
            4 blocks of a residual network; without a layer it is FedAvg.
    """

    layers: tuple[str, ...] | None = None

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg without the weights that stay local."""
        local = weights_of_layers(context.network, self.layers)
        return replace(recipe(context, local=weights_in(local)), views={"personal": personal_model})
