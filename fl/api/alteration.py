"""Alterations: functions that change the features of layers while a client trains.

A tap reads features of a layer, an alteration changes them, in training mode only. A study can add
alterations to any method that is built by `fl.api.recipe`.

Labels are mixed as samples or features are, for Mixup and similar methods. A mix is a pair: the
index of each sample's partner in the batch, int64 [b], and each sample's own share, [b]. Under
`MIXED`, a batch has the mixes of its pass in their order. The cross-entropy is linear in the
target, so the cross-entropy of mixed labels is the mix of the two cross-entropies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

import torch
from torch import Tensor

from fl.api.protocols import Adapt, Apply, Batch, ChangeBatch, Start
from fl.api.state import Variables
from fl.api.trees import AnyTree, Tree
from fl.base.errors import FedloomError
from fl.pytorch import keyed

ALTERATION_STATES: Final = "alterations"
"""Key in a client's tree and its work tree: states of alterations by name."""


def stateless(variables: Variables) -> Tree:
    """Return the state of an alteration without one, {}."""
    return {}


@dataclass(frozen=True)
class Alteration:
    """Change of the features of some layers during training.

    Attributes:
        name: Name of its state and of its random numbers.
        layers: Names of modules.
        apply: Function that changes the output of a layer.
        start: Function that makes the first state of every client; the state stays with the client.
        adapt: Function that changes the state after every step, by what `apply` returned for each
            layer; None: the state stays as it is.
        change_batch: Function that changes batches of a pass; None: batches stay as they are.
    """

    name: str
    layers: tuple[str, ...]
    apply: Apply
    start: Start = stateless
    adapt: Adapt | None = None
    change_batch: ChangeBatch | None = None


class Alterations:
    """Alterations of a method; several at one layer act one after another."""

    def __init__(self, alterations: Sequence[Alteration]) -> None:
        self._alterations = tuple(alterations)
        self.layers = tuple(
            dict.fromkeys(layer for alteration in alterations for layer in alteration.layers)
        )
        # Numbers made before anything is traced: a compiled program cannot hash text.
        self._streams = {
            (alteration.name, layer): keyed.stream_number(f"{alteration.name} {layer}")
            for alteration in alterations
            for layer in alteration.layers
        }
        self._noise_streams = {
            alteration.name: keyed.stream_number(alteration.name) for alteration in alterations
        }
        self.needs_keys = bool(alterations)

    def __iter__(self) -> Iterator[Alteration]:
        """Iterate over the alterations."""
        return iter(self._alterations)

    def start(self, variables: Variables) -> Mapping[str, Tree]:
        """Return the states of the alterations that have one, by name."""
        states = {alteration.name: alteration.start(variables) for alteration in self._alterations}
        return {name: state for name, state in states.items() if state}

    def change_batch(self, batch: Batch) -> Batch:
        """Return the changed batch of a pass."""
        for alteration in self._alterations:
            if alteration.change_batch:
                key = keyed.derive_keys(batch["key"], self._noise_streams[alteration.name])
                batch = {**alteration.change_batch({**batch, "key": key}), "key": batch["key"]}
        return batch

    def functions(
        self, states: Tree, batch: Batch
    ) -> tuple[Mapping[str, Callable[[Tensor], Tensor]], Tree]:
        """Return the functions that change features in one pass over a batch.

        Args:
            states: States of alterations by name.
            batch: The batch.

        Returns:
            Functions by layer (see `fl.api.network.Network.train`), and a dictionary that the pass
            fills with data for `adapt`.

        Raises:
            FedloomError: In the pass, if it uses one of the layers twice.
        """
        observations: dict[str, dict[str, Tree]] = {
            alteration.name: {} for alteration in self._alterations if alteration.adapt
        }
        altered: list[str] = []

        def alter(layer: str, features: Tensor) -> Tensor:
            if layer in altered:
                raise FedloomError(
                    f"layers: the model uses {layer} more than once in a pass",
                    advice="choose a layer that the model uses once",
                )
            altered.append(layer)
            for alteration in self._alterations:
                if layer in alteration.layers:
                    key = keyed.derive_keys(batch["key"], self._streams[alteration.name, layer])
                    state = states.get(alteration.name, {})
                    features, observed = alteration.apply(
                        layer, features, {**batch, "key": key}, state
                    )
                    if alteration.adapt:
                        observations[alteration.name][layer] = observed
            return features

        return {layer: partial(alter, layer) for layer in self.layers}, observations

    def adapt(self, work: AnyTree, observations: Tree) -> AnyTree:
        """Return the work tree with the next states, given the data that `functions` collected."""
        states: Mapping[str, Tree] = work.get(ALTERATION_STATES, {})
        adapted = {
            alteration.name: alteration.adapt(
                states[alteration.name], observations[alteration.name]
            )
            for alteration in self._alterations
            if alteration.adapt
        }
        if not adapted:
            return work
        return cast("AnyTree", {**work, ALTERATION_STATES: {**states, **adapted}})


MIXED = "mixed"

Mix = tuple[Tensor, Tensor]


def remember(batch: Batch, partner: Tensor, share: Tensor) -> Batch:
    """Return the batch with one more mix."""
    return {**batch, MIXED: (*batch.get(MIXED, ()), (partner, share))}


def mixed(values: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    """Return the mix share v_i + (1 - share) v_partner of values v [b, ...]."""
    share = share.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))
    return share * values + (1 - share) * values[partner]


def mixed_labels(labels: Tensor, outputs: Tensor, mixes: Sequence[Mix]) -> Tensor:
    """Return the labels after all mixes, as shares of classes [b, classes].

    Args:
        labels: [b].
        outputs: Outputs [b, classes], for the number of classes and the type.
        mixes: The mixes of the batch, in their order.
    """
    # `one_hot` reads values, which is impossible under vmap within a gradient.
    classes = torch.arange(outputs.shape[1], device=labels.device)
    shares = (labels[..., None] == classes).to(outputs.dtype)
    for partner, share in mixes:
        shares = mixed(shares, partner, share)
    return shares
