"""Specs: the descriptions of runs and of their components, as plans and records hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict, cast

ComponentSpec = Mapping[str, Any]
"""``{"name": ..., key: value, ...}`` of a component; its class declares the other keys.

The spec of a data set that reads the user's own files has the key ``content`` with their hashes
(`fl.plan.components`).
"""


class MethodSpec(TypedDict):
    """A method, and what a study adds to it (`fl.base.registry.ADDED_KINDS`)."""

    method: ComponentSpec
    terms: NotRequired[Sequence[ComponentSpec]]
    alterations: NotRequired[Sequence[ComponentSpec]]
    wire: NotRequired[Sequence[ComponentSpec]]
    aggregation: NotRequired[Sequence[ComponentSpec]]
    devices: NotRequired[Sequence[ComponentSpec]]
    selection: NotRequired[Sequence[ComponentSpec]]
    asynchronous: NotRequired[Sequence[ComponentSpec]]


class Spec(MethodSpec):
    """Every choice that decides a run's numbers.

    ``training`` has the keys of `fl.api.training.Training`. Other keys are absent unless a study
    sets them, so that runs without them keep their names; a stored run may lack keys that its
    version did not know.
    """

    dataset: ComponentSpec
    partition: ComponentSpec
    model: ComponentSpec
    training: Mapping[str, Any]
    seed: NotRequired[int]
    start: NotRequired[str | None]
    train_on: NotRequired[str | int | None]
    test: NotRequired[str]


ComponentKey = Literal["dataset", "partition", "model", "method"]
"""Keys of a spec with one component each."""


def component_specs(spec: MethodSpec, key: str) -> Sequence[ComponentSpec]:
    """Return the components under a key of a spec, none if it is absent."""
    component = cast("Mapping[str, Any]", spec).get(key, [])
    return component if isinstance(component, Sequence) else [component]
