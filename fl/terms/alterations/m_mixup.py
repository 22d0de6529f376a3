"""M-Mixup, manifold mixup: features of a randomly drawn layer, and labels, are mixed.

Verma, Lamb, Beckham, Najafi, Mitliagkas, Lopez-Paz, Bengio. Manifold Mixup: Better Representations
by Interpolating Hidden States. ICML 2019. arXiv:1806.05236.

The layer is drawn for each batch from `layers`, and from the input too, unless `inputs` is false.
The rest follows `fl.terms.alterations.mixup`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
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
from fl.blocks.batch_alterations import check_mixed_labels
from fl.terms.alterations.mixup import draw_mixture

LAYER_STREAM = 2
"""The stream of the layer, after the streams of `draw_mixture`."""

CHOICE_KEY = "m-mixup"
"""Key of a batch: the partners, lambda and the index of the layer."""


@dataclass(frozen=True)
class MMixup:
    """Features of a layer, mixed with those of another sample.

    Attributes:
        layers: names of the model's modules after which features may be mixed, of any shape.
        inputs: whether the model's inputs may be mixed too.
        alpha: lambda is drawn from Beta(alpha, alpha).
    """

    layers: tuple[str, ...]
    inputs: bool = True
    alpha: Annotated[float, Bound(low=0.001, high=2)] = 2.0

    title: ClassVar = "M-Mixup"
    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> Alteration:
        """Return the alteration, without a state; `FedloomError` for inputs that are tokens."""
        check_mixed_labels(context, "m-mixup")
        if self.inputs and context.network.uses_tokens:
            raise FedloomError(
                "alterations.m-mixup.inputs: is true, but inputs are tokens", "false"
            )
        locations = (*(["input"] if self.inputs else []), *self.layers)

        def prepare(batch: Batch) -> Batch:
            partner, share = draw_mixture(batch, self.alpha)
            index = (keyed.uniform(batch["key"][0], LAYER_STREAM) * len(locations)).long()
            batch = {**remember(batch, partner, share), CHOICE_KEY: (partner, share, index)}
            if not self.inputs:
                return batch
            return {**batch, "x": trees.map_inputs(lambda x: mix_at("input", x, batch), batch["x"])}

        def mix_at(location: str, values: Tensor, batch: Batch) -> Tensor:
            partner, share, index = batch[CHOICE_KEY]
            return torch.where(
                index == locations.index(location), mixed(values, partner, share), values
            )

        def apply(layer: str, features: Tensor, batch: Batch, state: Tree) -> tuple[Tensor, Tree]:
            return mix_at(layer, features, batch), {}

        return Alteration("m-mixup", self.layers, apply, change_batch=prepare)
