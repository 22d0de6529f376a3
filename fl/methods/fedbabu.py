"""FedBABU: only the body is trained federatedly; the head stays as it was initialised.

Oh, Kim, Yun. FedBABU: Towards Enhanced Representation for Federated Image Classification. ICLR
2022. arXiv:2106.06042.

Family: classifier. Exchanged: model, whose head never changes. Local: nothing. Key: none.

The paper's personalised results come from fine-tuning the result on each client: an entry
``{method: finetune, start: fedbabu}``.
"""

from __future__ import annotations

from fl.api import BuildContext, Method, TrainingPass, declare, recipe, weights_not_in


@declare("global", tasks=("classification", "regression"), modalities=True)
class FedBABU:
    """FedBABU, without hyper-parameters of its own."""

    def build(self, context: BuildContext) -> Method:
        """FedAvg that trains everything but the head."""
        return recipe(context, passes=(TrainingPass(weights_not_in(context.network.head)),))
