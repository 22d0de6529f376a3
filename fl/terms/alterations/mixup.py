"""Mixup: inputs and labels are mixed with those of another sample of the batch.

Zhang, Cisse, Dauphin, Lopez-Paz. mixup: Beyond Empirical Risk Minimization. ICLR 2018.
arXiv:1710.09412.

As in the released code, lambda is one number for the batch, partners are a permutation, and the
loss is lambda times the loss with the own label plus 1 - lambda times the loss with the partner's
label. For a mask, the shares of classes are mixed in each pixel, and the loss is that of these
shares. Losses other than the task's see the sample's own label; reference models see samples as
they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from fl.api import (
    ALL_TASKS,
    Alteration,
    Batch,
    Bound,
    BuildContext,
    FedloomError,
    Tree,
    keyed,
    mixed,
    remember,
    trees,
)
from fl.blocks.batch_alterations import check_mixed_labels, draw_partners

PARTNER_STREAM, SHARE_STREAM = range(2)
"""Streams of a batch's keys."""


@dataclass(frozen=True)
class Mixup:
    """Inputs mixed with those of another sample.

    Attributes:
        alpha: lambda is drawn from Beta(alpha, alpha); 1 is the paper's for CIFAR.
    """

    alpha: Annotated[float, Bound(low=0.001, high=2)] = 1.0

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> Alteration:
        """Return an alteration of the model's inputs, without layers; raises for tokens."""
        check_mixed_labels(context, "mixup")
        if context.network.uses_tokens:
            raise FedloomError(
                "alterations.mixup: inputs are tokens, which cannot be mixed",
                advice="choose a data set whose inputs are numbers",
            )

        def prepare(batch: Batch) -> Batch:
            partner, share = draw_mixture(batch, self.alpha)
            return remember(
                {**batch, "x": trees.map_inputs(lambda x: mixed(x, partner, share), batch["x"])},
                partner,
                share,
            )

        return Alteration("mixup", (), keep_features, change_batch=prepare)


def draw_mixture(batch: Batch, alpha: float) -> tuple[Tensor, Tensor]:
    """Draw partners [b] and lambda [b], equal for all; samples without weight have no partner."""
    key: Tensor = batch["key"]
    partner = draw_partners(key, batch["weight"], PARTNER_STREAM)
    return partner, keyed.beta(key[0], SHARE_STREAM, alpha, alpha).expand(len(key))


def keep_features(layer: str, features: Tensor, batch: Batch, state: Tree) -> tuple[Tensor, Tree]:
    """Return the features as they are."""
    return features, {}
