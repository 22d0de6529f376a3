"""FedProto: clients send the mean feature of each class and nothing else.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang. FedProto: Federated Prototype Learning across Heterogeneous
Clients. AAAI 2022. arXiv:2105.00243.

Family: class means. Exchanged: mean features by class. Local: model. Key: `lam`.

The regulariser holds each sample's features to its class's prototype, by the mean square over the
features' numbers, as in the released code (the paper: the distance between class means). Prototypes
are of the trained model in evaluation mode; in the released code they are means of the features
that the steps of the last epoch saw, each with the weights of that step. A client predicts among
the prototypes of all classes; there, of those that it holds. Here clients start from one initial
model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from torch import Tensor

from fl.api import (
    BuildContext,
    Method,
    NonNegative,
    Predictor,
    RecipeClient,
    Tree,
    Variables,
    View,
    all_weights,
    cross_entropy,
    declare,
    personal_model,
    recipe,
)
from fl.blocks.anchor_exchange import AnchorServer, anchors_after_training
from fl.blocks.anchors import AnchorAverage, anchor_average, anchor_scores, towards_anchors


class FedProtoModel(Variables):
    """Model of a client that is scored.

    Attributes:
        anchors: Prototypes of all classes, [C, d]; zeros for a class without one.
    """

    anchors: Tensor


@declare("personal")
class FedProto:
    """Clients exchange class prototypes instead of models.

    Attributes:
        lam: Weight lambda of the regulariser (the released code: 1; 0.1 for CIFAR-10).
        predict: Prediction by the nearest `prototype`, or by the client's own `head`.
        prototypes: Mean of prototypes over clients: `weighted` by their samples of the class
            (equation 6, with weights of sum 1, without its factor 1 / |N_j|), or `uniform` as in
            the released code.
    """

    lam: NonNegative = 1.0
    predict: Literal["prototype", "head"] = "prototype"
    prototypes: AnchorAverage = "weighted"

    def build(self, context: BuildContext) -> Method:
        """Local with one more term, whose clients send prototypes."""
        network = context.network
        base = recipe(context, terms=(cross_entropy, towards_anchors(self.lam)), local=all_weights)
        exchange = anchors_after_training(base, context, anchor_average(self.prototypes))

        def nearest(variables: FedProtoModel, memory: Tree, x: Tensor) -> Tensor:
            features = network.eval(variables["params"], variables["buffers"], x).features
            return anchor_scores(features.flatten(1), variables["anchors"])

        def with_anchors(server: AnchorServer, client: RecipeClient) -> FedProtoModel:
            return {**personal_model(server, client), "anchors": server["anchors"]}

        view: View = personal_model
        if self.predict == "prototype":
            view = Predictor(with_anchors, nearest, is_per_sample=True)
        return replace(exchange, views={"personal": view})
