"""LG-FedAvg: a representation of each client's own below a shared top.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency. Think Locally, Act Globally:
Federated Learning with Local and Global Representations. 2020. arXiv:2001.01523.

Family: personal layers. Exchanged: head. Local: body. Key: `layers`.

All weights are trained together. All clients begin with one initial model, without which a shared
top would mean nothing; the paper's runs begin with a model of FedAvg. The paper serves a new device
by the mean output of all local models; here a client that never took part has the initial
representation.
"""

from __future__ import annotations

from dataclasses import replace

from fl.api import BuildContext, Method, declare, personal_model, recipe, weights_not_in
from fl.blocks.layer_weights import weights_of_layers


@declare("personal", title="LG-FedAvg", tasks=("classification", "regression"), modalities=True)
class LGFedAvg:
    """FedAvg of the top of the model only.

    Attributes:
        layers: Names of the layers that are shared; null: the head (the paper: the last two layers
            of four on MNIST).
    """

    layers: tuple[str, ...] | None = None

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg of the shared layers."""
        names = weights_of_layers(context.network, self.layers)
        return replace(
            recipe(context, local=weights_not_in(names)), views={"personal": personal_model}
        )
