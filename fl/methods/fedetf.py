"""FedETF: all clients train towards one fixed head, whose classes are as far apart as possible.

Li, Shang, He, Lin, Wu. No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning
with Synthetic and Fixed Classifier. ICCV 2023. arXiv:2303.10058.

Family: classifier. Exchanged: body. Local: nothing. Key: `scale`.

The head is a simplex equiangular tight frame that all know from the run's seed, so that none is
sent. Features, by the model's key ``projection`` those of a projection layer as in the paper, are
divided by their length; the scale of the logits is trained and shared. The loss is the balanced
softmax of the client's class counts. The paper's second stage, personal fine-tuning, is an entry
``{method: finetune, start: fedetf}``.
"""

from __future__ import annotations

from torch import Tensor

from fl.api import (
    COUNTS,
    SHARED_PARAMS,
    BuildContext,
    Forward,
    Inputs,
    Method,
    Positive,
    RecipeServer,
    Term,
    TrainingPass,
    Tree,
    classification_loss,
    declare,
    recipe,
    trees,
    weights_in,
    weights_not_in,
)
from fl.blocks.calibration import balanced_logits, with_class_counts
from fl.blocks.fixed_heads import cosine_outputs, simplex_etf, with_fixed_head
from fl.blocks.linear_layers import head_parameters


@declare("global", title="FedETF")
class FedETF:
    """FedAvg of the body with a fixed head.

    Attributes:
        scale: Scale of the logits before round 1 (the authors: 10 or 1, by model).
    """

    scale: Positive = 10.0

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg of the body with logits s <z / ||z||, m_c>."""
        network = context.network
        base = recipe(
            context,
            terms=(self.balanced_loss(context),),
            local=weights_in(network.head),
            passes=(TrainingPass(weights_not_in(network.head)),),
            shared_params=lambda variables: {
                "scale": trees.leaves(variables["params"])[0].new_tensor(self.scale)
            },
        )

        def predict(variables: RecipeServer, memory: Tree, x: Inputs) -> Tensor:
            features = network.eval(variables["params"], variables["buffers"], x).features
            head = head_parameters(network, variables["params"])["weight"]
            return logits(features, head, variables[SHARED_PARAMS]["scale"])

        fixed = with_fixed_head(base, network, lambda first: simplex_etf(context, first), predict)
        return with_class_counts(fixed)

    def balanced_loss(self, context: BuildContext) -> Term:
        """Return the term: the balanced softmax of the client's class counts."""

        def term(forward: Forward) -> Tensor:
            head = head_parameters(context.network, forward.params)["weight"]
            outputs = logits(forward.output.features, head, forward.shared_params["scale"])
            counts = forward.work[COUNTS].to(outputs.dtype)
            return classification_loss(balanced_logits(outputs, counts), forward.batch)

        return term


def logits(features: Tensor, head: Tensor, scale: Tensor) -> Tensor:
    """Return s <z / ||z||, m_c> of features [b, ...] and a head [C, d]."""
    return scale * cosine_outputs(features, head)
