"""SphereFed: clients learn features on one sphere, towards a fixed head of orthonormal directions.

Dong, Zhang, Li, Kung. SphereFed: Hyperspherical Federated Learning. ECCV 2022. arXiv:2207.09413.

Family: classifier. Exchanged: body. Local: nothing. Key: `lr`.

Features are divided by their length. The head, which all know from the run's seed and nobody sends,
has one direction for each class; the outputs are the cosines to them. The loss is the squared
distance of the outputs to the label's unit vector, summed over classes (a mean over classes is the
same at a smaller rate). The paper calibrates the head after training: that is an entry ``{method:
spherefed-head, start: spherefed}``.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    BuildContext,
    Forward,
    Method,
    Term,
    TrainingPass,
    declare,
    recipe,
    weighted_mean,
    weights_in,
    weights_not_in,
)
from fl.blocks.fixed_heads import (
    cosine_outputs,
    orthonormal_head,
    predict_by_cosines,
    with_fixed_head,
)
from fl.blocks.linear_layers import head_parameters


@declare("global", title="SphereFed")
class SphereFed:
    """FedAvg of the body with a fixed orthonormal head and squared errors."""

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg of the body with the loss ||W z / ||z|| - e_y||^2."""
        network = context.network
        base = recipe(
            context,
            terms=(squared_error(context),),
            local=weights_in(network.head),
            passes=(TrainingPass(weights_not_in(network.head)),),
        )
        return with_fixed_head(
            base,
            network,
            lambda variables: orthonormal_head(context, variables),
            predict_by_cosines(network),
        )


def squared_error(context: BuildContext) -> Term:
    """Return the term: the squared distance of the cosines to the label's unit vector."""

    def term(forward: Forward) -> Tensor:
        weight = head_parameters(context.network, forward.params)["weight"]
        outputs = cosine_outputs(forward.output.features, weight)
        targets = F.one_hot(forward.batch["y"], context.classes).to(outputs.dtype)
        return weighted_mean((outputs - targets).square().sum(-1), forward.batch)

    return term
