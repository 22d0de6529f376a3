"""FML: each client has a private model and a copy of the shared one, which teach each other.

Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu. Federated Mutual Learning. 2020.
arXiv:2006.16765.

Both models see the same batches; each takes the other's probabilities as a fixed target. Here both
have one architecture. The divergence is the mean over samples of its sum over classes. PFLlib's and
HtFLlib's code divides by the number of classes as well, lets gradients flow into the teacher, and,
as started, trains the shared model without labels.
"""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    PERSONAL_PARAMS,
    AdaptiveTerm,
    BuildContext,
    Forward,
    Method,
    Share,
    Tree,
    classification_loss,
    cross_entropy,
    declare,
    recipe,
    shared,
    weighted_mean,
)

PRIVATE_MODEL = "private_model"


@declare("global", "personal", title="FML")
class FML:
    """FedAvg and Local with mutual distillation.

    Attributes:
        alpha: Weight of the labels in the private model's loss; 1 is Local.
        beta: Weight of the labels in the shared model's loss; 1 is FedAvg.
    """

    alpha: Share = 0.5
    beta: Share = 0.5

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg and a private model, whose losses are a CE + (1 - a) KL(other || own)."""
        network = context.network

        def term(forward: Forward, state: Tree) -> tuple[Tensor, Tree]:
            batch, w = forward.batch, forward.output.outputs
            private = network.train(
                forward.personal_params, state["buffers"], batch["x"], key=batch.get("key")
            )
            v = private.outputs
            of_shared = self.beta * cross_entropy(forward) + (1 - self.beta) * divergence(
                v, w, batch
            )
            labels = classification_loss(v, batch)
            of_private = self.alpha * labels + (1 - self.alpha) * divergence(w, v, batch)
            return of_shared + of_private, {"buffers": private.buffers}

        mutual = AdaptiveTerm(
            PRIVATE_MODEL,
            lambda variables: {"buffers": variables["buffers"]},
            term,
            lambda state, statistics: statistics,
        )
        base = recipe(
            context, terms=(mutual,), personal_params=lambda variables: variables["params"]
        )

        def personal(server: Tree, client: Tree | None) -> Tree:
            client_tree = client or {}
            return {
                "params": dict(client_tree[PERSONAL_PARAMS]),
                "buffers": dict(client_tree["terms"][PRIVATE_MODEL]["buffers"]),
            }

        return replace(base, views={"global": shared, "personal": personal})


def divergence(teacher: Tensor, student: Tensor, batch: Tree) -> Tensor:
    """KL(softmax(teacher) || softmax(student)), the weighted mean over the batch; teacher fixed."""
    log_p, log_q = F.log_softmax(teacher.detach(), -1), F.log_softmax(student, -1)
    return weighted_mean((log_p.exp() * (log_p - log_q)).sum(-1), batch)
