"""Features of the model being trained beside those of the shared one, which drift terms compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fl import trees
from fl.errors import FedloomError
from fl.method import Batch, Setting
from fl.network import Network
from fl.parts.losses import Forward
from fl.trees import Tree

Seen = dict[str, dict[str, Tensor]]
"""By layer, ``own`` and ``shared`` features of the same samples, [..., n, d]."""


def features(forward: Forward, layers: Sequence[str]) -> Seen:
    """Of layers asked for by `fl.network.Network.tap`: own ones in training mode, shared ones in
    evaluation mode and without gradient.
    """
    shared = _shared(forward.network, forward.shared, forward.batch)
    return {name: {"own": forward.output.taps[name], "shared": shared[name]} for name in layers}


def looked(
    network: Network, variables: Tree, shared: Tree, batch: Batch, layers: Sequence[str]
) -> Seen:
    """The same with both models in evaluation mode."""
    own = network.eval(variables["params"], variables["buffers"], batch["x"]).taps
    frozen = _shared(network, shared, batch)
    return {name: {"own": own[name], "shared": frozen[name]} for name in layers}


def _shared(network: Network, shared: Tree, batch: Batch) -> Mapping[str, Tensor]:
    if len(shared["params"]) < len(network.names["params"]):
        raise FedloomError(
            "terms: the method's server has no whole model, so that drift from it cannot be "
            "measured; allowed: a method that shares all weights"
        )
    taps = network.eval(shared["params"], shared["buffers"], batch["x"]).taps
    return {name: tap.detach() for name, tap in taps.items()}


def check_batch(setting: Setting, term: str) -> None:
    """Raise `FedloomError` unless a batch has two samples, between which a distance can vary."""
    size = setting.training.batch_size
    if size < 2:
        raise FedloomError(f"{term}: batch_size is {size}; allowed: 2 or more")


def widths(setting: Setting, variables: Tree) -> dict[str, int]:
    """How many features each layer asked for has."""
    like = trees.leaves(variables["params"])[0]
    x = torch.zeros(1, *setting.shape, dtype=like.dtype, device=like.device)
    taps = setting.network.eval(variables["params"], variables["buffers"], x).taps
    return {name: tap.shape[1] for name, tap in taps.items()}


def unit_rows(seen: Seen) -> Seen:
    """Every sample's features divided by their length."""
    return {name: {k: F.normalize(t, dim=-1) for k, t in two.items()} for name, two in seen.items()}


ROUNDING = 64
"""Units of rounding by which the features of two models differ before they count as apart."""


def where_apart(new: Tree, old: Tree, two: Mapping[str, Tensor]) -> dict[str, Any]:
    """``new``, or ``old`` for clients with nothing to adapt to: their features are not all finite,
    or those of both models are the same but for rounding (as when a round begins), of which a
    solver or an optimizer that looks at ratios would make something arbitrary.
    """
    own, shared = two["own"], two["shared"]
    gap = (own - shared).square().sum((-2, -1))
    size = own.square().sum((-2, -1))
    # False where one of them is not finite.
    apart = (gap > (ROUNDING * torch.finfo(own.dtype).eps) ** 2 * size) & gap.isfinite()
    return trees.apply(lambda n, o: torch.where(trees.align(apart, n), n, o), new, old)


def one_by_one(
    fn: Callable[[Tree, Tree], dict[str, Any]], state: Tree, seen: Tree
) -> dict[str, Any]:
    """``fn`` for one client after another where there is a stack of them, to save memory."""
    leaf = trees.leaves(seen)[0]
    if leaf.dim() == 2:
        return fn(state, seen)
    rows = [fn(trees.take(state, row), trees.take(seen, row)) for row in range(len(leaf))]
    return trees.stack(rows)
