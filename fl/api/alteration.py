"""What an alteration is: a function of what layers give, between them and the layers that follow.

The counterpart of taps: a tap looks at features, an alteration changes them, in training mode only.
A study can add some to any method made by `fl.api.recipe`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from fl.api.protocols import Adapt, Apply, Batch, ChangeBatch, Start
from fl.api.trees import Tree
from fl.base.errors import FedloomError
from fl.pytorch import keyed

ALTERATION_STATES = "alterations"
"""In a client's tree and its work tree: by name, the states of alterations that have one."""


def stateless(variables: Tree) -> Tree:
    """No state."""
    return {}


@dataclass(frozen=True)
class Alteration:
    """Features that are changed where they come out of layers, while a client trains.

    name: of its state and its random numbers among those of others. layers: names of modules.
    start: the state that every client begins with; it stays with the client. adapt: after every
    step, given by layer what `apply` saw; None: the state stays as it is. before: what the pass is
    to see in place of the batch; None: the batch.
    """

    name: str
    layers: tuple[str, ...]
    apply: Apply
    start: Start = stateless
    adapt: Adapt | None = None
    change_batch: ChangeBatch | None = None


class Alterations:
    """Those of a method, one after another where several are at a layer."""

    def __init__(self, given: Sequence[Alteration]) -> None:
        self._given = tuple(given)
        self.layers = tuple(
            dict.fromkeys(layer for alteration in given for layer in alteration.layers)
        )
        # Numbers made before anything is traced: a compiled program cannot hash text.
        self._streams = {
            (alteration.name, layer): keyed.stream_of(f"{alteration.name} {layer}")
            for alteration in given
            for layer in alteration.layers
        }
        self._noise_streams = {
            alteration.name: keyed.stream_of(alteration.name) for alteration in given
        }
        self.needs_keys = bool(given)

    def start(self, variables: Tree) -> dict[str, Any]:
        """What a client's tree has of them; {} where none has a state."""
        states = {alteration.name: alteration.start(variables) for alteration in self._given}
        kept = {name: state for name, state in states.items() if state}
        return {ALTERATION_STATES: kept} if kept else {}

    def change_batch(self, batch: Batch) -> Batch:
        """What a pass sees in place of a batch."""
        for alteration in self._given:
            if alteration.change_batch:
                key = keyed.derived(batch["key"], self._noise_streams[alteration.name])
                batch = {**alteration.change_batch({**batch, "key": key}), "key": batch["key"]}
        return batch

    def functions(
        self, states: Tree, batch: Batch
    ) -> tuple[Mapping[str, Callable[[Tensor], Tensor]], dict[str, Any]]:
        """For one pass over a batch: by layer, what is done to its features (see
        `fl.api.network.Network.train`); and where, afterwards, stands what adapting wants to see.

        states: by name. Raises `FedloomError` in the pass for a layer that is used twice in it.
        """
        seen: dict[str, Any] = {
            alteration.name: {} for alteration in self._given if alteration.adapt
        }
        altered: list[str] = []

        def alter(layer: str, features: Tensor) -> Tensor:
            if layer in altered:
                raise FedloomError(
                    f"layers: the model uses {layer} more than once in a pass. Allowed: a layer "
                    "that it uses once"
                )
            altered.append(layer)
            for alteration in self._given:
                if layer in alteration.layers:
                    key = keyed.derived(batch["key"], self._streams[alteration.name, layer])
                    state = states.get(alteration.name, {})
                    features, noted = alteration.apply(
                        layer, features, {**batch, "key": key}, state
                    )
                    if alteration.adapt:
                        seen[alteration.name][layer] = noted
            return features

        return {layer: partial(alter, layer) for layer in self.layers}, seen

    def adapt(self, work: Tree, seen: Tree) -> Tree:
        """The work tree with states adapted to what `functions` saw."""
        adapted = {
            alteration.name: alteration.adapt(
                work[ALTERATION_STATES][alteration.name], seen[alteration.name]
            )
            for alteration in self._given
            if alteration.adapt
        }
        return (
            {**work, ALTERATION_STATES: {**work[ALTERATION_STATES], **adapted}}
            if adapted
            else dict(work)
        )
