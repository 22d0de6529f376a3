"""FedRoD: a generic model for balanced classes, and beside it a head of each client's own.

Chen, Chao. On Bridging Generic and Personalized Federated Learning for Image Classification. ICLR
2022. arXiv:2107.00778.

Family: personal layers. Exchanged: model. Local: second head. Key: none.

The shared model minimises the balanced softmax loss. The client's head learns, on frozen features,
what to add to the shared outputs under the client's own class distribution. Both are trained in the
same steps. The client's head starts at zero, so that a client that never trained predicts as the
shared model does. Classes that a client lacks are left out of its balanced softmax, log 0. (The
head is linear; the paper's variant with a hypernetwork is not built.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from torch import Tensor

from fl.api import (
    BuildContext,
    Forward,
    Method,
    Predictor,
    RecipeClient,
    RecipeServer,
    Tree,
    Variables,
    View,
    classification_loss,
    declare,
    personal_model,
    recipe,
    shared_model,
    weights_in,
)
from fl.blocks import linear_layers
from fl.blocks.calibration import balanced_logits, calibrated_loss, with_class_counts


class FedRoDModel(Variables):
    """Model of a client that is scored.

    Attributes:
        personal_params: Parameters of its own head: ``weight`` [C, d] and ``bias`` [C].
    """

    personal_params: Tree


@declare("global", "personal")
class FedRoD:
    """A generic head with a balanced loss, and a personal head.

    Attributes:
        head: Head of the balanced loss: `shared` as in algorithm 1, or `local`, so that only the
            body is averaged (pFedGraph's code).
    """

    head: Literal["shared", "local"] = "shared"

    def build(self, context: BuildContext) -> Method:
        """FedAvg with a balanced loss, and a head beside it that stays local."""
        network = context.network
        base = recipe(
            context,
            terms=(calibrated_loss(balanced_logits), personalised),
            local=weights_in(network.head if self.head == "local" else ()),
            personal_params=lambda variables: linear_layers.zero_head(network, variables["params"]),
        )

        def personal_view(server: RecipeServer, client: RecipeClient) -> FedRoDModel:
            is_local = self.head == "local"
            model = personal_model(server, client) if is_local else shared_model(server, None)
            return {**model, "personal_params": client["personal_params"]}

        def predict(variables: FedRoDModel, memory: Tree, x: Tensor) -> Tensor:
            output = network.eval(variables["params"], variables["buffers"], x)
            return output.outputs + linear_layers.head_outputs(
                variables["personal_params"], output.features
            )

        views: dict[str, View] = {"global": shared_model} if self.head == "shared" else {}
        views["personal"] = Predictor(
            personal_view, predict, serves_absent_clients=True, is_per_sample=True
        )
        return replace(with_class_counts(base), views=views)


def personalised(forward: Forward) -> Tensor:
    """Cross-entropy of the shared and the own head's outputs, added; only the own head learns."""
    residual = linear_layers.head_outputs(forward.personal_params, forward.output.features.detach())
    return classification_loss(forward.output.outputs.detach() + residual, forward.batch)
