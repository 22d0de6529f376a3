"""Features of the model in training and of the shared model, which drift terms compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    SHARED,
    Batch,
    BuildContext,
    FedloomError,
    Forward,
    Network,
    ReferencePass,
    Tree,
    trees,
)
from fl.blocks.dummy_inputs import zero_inputs

LayerFeatures = dict[str, dict[str, Tensor]]
"""By layer, the features ``own`` and ``shared`` of the same samples, [..., n, d]."""


@dataclass(frozen=True)
class Drift:
    """Layers of a network, by module name, whose features a term compares.

    Attributes:
        network: A view of the context's network; its passes return the features of these layers.
        layers: The names of the layers.
        unit: Whether the features of every sample are divided by their length.
    """

    network: Network
    layers: tuple[str, ...]
    unit: bool = False

    @classmethod
    def tapping(cls, context: BuildContext, layers: tuple[str, ...], unit: bool = False) -> Drift:
        """Return the drift of ``layers``, which a view of the context's network taps."""
        network = context.network.view()
        network.tap(layers)
        return cls(network, layers, unit)

    def reference(self, outputs_of: ReferencePass) -> dict[str, Tensor]:
        """Return the shared model's features, see `fl.api.term.Reference`."""
        taps = outputs_of(SHARED).taps
        return {f"{SHARED} {name}": taps[name] for name in self.layers}

    def features(self, forward: Forward) -> LayerFeatures:
        """Return the own features in training mode, and the shared ones in evaluation mode.

        The shared features have no gradient.
        """
        return self._compare(forward.output.taps, forward.batch)

    def look(self, variables: Tree, batch: Batch) -> Tree:
        """Return `features` with both models in evaluation mode."""
        output = self.network.eval(variables["params"], variables["buffers"], batch["x"])
        return dict(self._compare(output.taps, batch))

    def widths(self, context: BuildContext, variables: Tree) -> dict[str, int]:
        """Return the number of features of each layer."""
        x = zero_inputs(context, 1, trees.leaves(variables["params"])[0])
        taps = self.network.eval(variables["params"], variables["buffers"], x).taps
        return {name: tap.shape[1] for name, tap in taps.items()}

    def _compare(self, taps: Mapping[str, Tensor], batch: Batch) -> LayerFeatures:
        reference = batch["reference"]
        features = {
            name: {"own": taps[name], "shared": reference[f"{SHARED} {name}"]}
            for name in self.layers
        }
        return unit_rows(features) if self.unit else features


def check_two_samples(context: BuildContext, term: str) -> None:
    """Raise `FedloomError` if a batch has fewer than two samples, so that no distance can vary."""
    size = context.training.batch_size
    if size < 2:
        raise FedloomError(f"{term}: batch_size is {size}", "2 or more")


def unit_rows(features: LayerFeatures) -> LayerFeatures:
    """Divide the features of every sample by their length."""
    return {
        name: {k: F.normalize(t, dim=-1) for k, t in pair.items()}
        for name, pair in features.items()
    }


ROUNDING_UNITS = 64
"""Features of two models differ if they are further apart than this many units of rounding."""


def update_where_different(updated: Tree, previous: Tree, features: Mapping[str, Tensor]) -> Tree:
    """Return ``updated``, but ``previous`` for clients that have nothing to adapt to.

    These are clients whose features are not all finite, or whose features are equal for both models
    up to rounding, as at the beginning of a round. For the latter, a solver or an optimizer that
    divides small numbers would return something arbitrary.

    Args:
        updated: The adapted state.
        previous: The state before.
        features: The features ``own`` and ``shared``, [..., n, d].
    """
    local, shared = features["own"], features["shared"]
    gap = (local - shared).square().sum((-2, -1))
    size = local.square().sum((-2, -1))
    # False if one of them is not finite.
    is_different = (
        gap > (ROUNDING_UNITS * torch.finfo(local.dtype).eps) ** 2 * size
    ) & gap.isfinite()
    return trees.apply(
        lambda n, o: torch.where(trees.align(is_different, n), n, o), updated, previous
    )


def apply_in_groups(
    fn: Callable[[Tree, Tree], Tree], state: Tree, features: Tree, size: int
) -> Tree:
    """Apply ``fn`` to one client, or to ``size`` clients of a stack at a time, to save memory."""
    leaf = trees.leaves(features)[0]
    if leaf.dim() == 2 or len(leaf) <= size:
        return fn(state, features)
    groups = [slice(begin, begin + size) for begin in range(0, len(leaf), size)]
    return trees.concatenate([fn(trees.take(state, g), trees.take(features, g)) for g in groups])
