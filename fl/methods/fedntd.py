"""FedNTD: clients keep the shared model's opinion of the classes that a sample is not of.

Lee, Jeong, Shin, Bae, Yun. Preservation of the Global Knowledge by Not-True Distillation in
Federated Learning. NeurIPS 2022. arXiv:2106.03097.

Family: distillation. Exchanged: model. Local: nothing. Key: `beta`.

Defaults are those of the authors' configuration (Lee-Gihun/FedNTD, be00ee59, `config/fedntd.json`).
The shared model is in evaluation mode. The authors' teacher is in evaluation mode as well, except
for the first client that the program trains.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    SHARED,
    BuildContext,
    Forward,
    Method,
    NonNegative,
    Positive,
    ReferencePass,
    ReferenceTerm,
    cross_entropy,
    declare,
    recipe,
    weighted_mean,
)

TEACHER = "outputs of the shared model"
"""Name of the shared model's outputs in ``batch["reference"]``."""


@declare("global", modalities=True)
class FedNTD:
    """FedAvg with distillation of the classes that are not a sample's own.

    Attributes:
        beta: Weight of the distillation; 0 is FedAvg.
        tau: Temperature of both models' probabilities.
    """

    beta: NonNegative = 1.0
    tau: Positive = 1.0

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg with one more term."""
        return recipe(context, terms=(cross_entropy, not_true_distillation(self.beta, self.tau)))


def not_true_distillation(beta: NonNegative, tau: Positive) -> ReferenceTerm:
    """Return beta tau^2 KL(q^g || q), the weighted mean over the batch (equations 4 to 6).

    q and q^g are softmax probabilities over the classes other than the label, at temperature tau,
    of the model in training and of the shared model. With two classes the term is 0.

    Args:
        beta: Weight beta.
        tau: Temperature tau.
    """

    def reference(reference_pass: ReferencePass) -> dict[str, Tensor]:
        return {TEACHER: reference_pass(SHARED).outputs}

    def term(forward: Forward) -> Tensor:
        outputs, batch = forward.output.outputs, forward.batch
        is_label = F.one_hot(batch["y"], outputs.shape[-1]).bool()
        student = (outputs / tau).masked_fill(is_label, -float("inf")).log_softmax(-1)
        shared = batch["reference"][TEACHER] / tau
        teacher = shared.masked_fill(is_label, -float("inf")).log_softmax(-1)
        # At the label both are -inf, whose difference is no number.
        ratio = (teacher - student).masked_fill(is_label, 0.0)
        return beta * tau**2 * weighted_mean((teacher.exp() * ratio).sum(-1), batch)

    return ReferenceTerm(term, reference)
