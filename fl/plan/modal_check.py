"""Whether a data set, partition, model and method work with clients of several modalities."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fl.base import registry
from fl.base.errors import ConfigError, Where
from fl.base.places import path_of
from fl.base.registry import Entry
from fl.data import holdings, materials
from fl.data.modality import ANY, MODALITY, kinds_of, takes
from fl.plan.components import Choice

Held = Literal["first", "all", "one", "some"]
"""What a client holds of each sample, and a model is for: the data set's first input; all of its
inputs; one of them, in which clients differ; one of them or all.
"""
DIFFER, ALL = ("one", "some"), ("all", "some")
"""Where clients differ in it, and where there are some that hold all inputs."""


def check(model: Choice, dataset: Choice, scheme: Choice) -> Held:
    """What clients hold of each sample; a combination that cannot work is a `ConfigError`."""
    inputs, target = materials.modalities_of(dataset.spec), model.entry.target
    kinds, several = [kind.name for kind in inputs], takes(target, inputs)
    counts = _counts(scheme, dataset, kinds)
    if counts is None:
        if kinds_of(target) and not several:
            named = " and ".join(kinds_of(target))
            wanted = "several, all numbers," if kinds_of(target) == (ANY,) else named
            problem = f"{model.text} takes {wanted} as inputs, but {dataset.text} has "
            problem += " and ".join(kinds) if kinds else "one"
            raise ConfigError(model.at, problem, "a model for such inputs")
        return "all" if several else "first"
    if not several:
        first = counts[0]
        holders = f"clients {first} to {first + counts[1] - 1}"
        problem = f"{model.text} takes one kind of input, but {holders} of {scheme.text} have "
        problem += f"{kinds[1]}, where others have {kinds[0]}"
        fitting = [entry.name for entry in registry.entries("model") if takes(entry.target, inputs)]
        raise ConfigError(model.at, problem, ", ".join(fitting) or f"one for {', '.join(kinds)}")
    return "one" if len(counts) == len(kinds) else "some"


def _counts(scheme: Choice, dataset: Choice, kinds: list[str]) -> list[int] | None:
    """How many clients have each modality; None where there is but one."""
    given, at = scheme.values.get("modalities"), scheme.at / "modalities"
    if "path" in scheme.values:
        table, at = holdings.read(path_of(scheme.values["path"])), scheme.at / "path"
        if MODALITY in table:
            given = np.bincount(table.groupby("client")[MODALITY].first()).tolist()
    if given is None:
        return None
    problem, told = f"is {list(given)}", " and ".join(kinds)
    groups = [*kinds, told][: len(given)]
    if len(kinds) < 2:
        raise ConfigError(at, f"{problem}, but {dataset.text} has one kind of input", "none")
    if len(given) not in (len(kinds), len(kinds) + 1):
        allowed = (
            f"{len(kinds)} numbers of clients, for {told}, and one more for all of them at once"
        )
        raise ConfigError(at, problem, allowed)
    for kind, count in zip(groups, given, strict=True):
        if not count:
            allowed = f"1 or more for {', '.join(groups)} each"
            raise ConfigError(at, f"{problem}: no client has {kind}", allowed)
    clients = scheme.values.get("clients", sum(given))
    if sum(given) != clients:
        raise ConfigError(at, f"{problem}, {sum(given)} clients", f"{clients} together")
    return list(given)


def check_inputs(entry: Entry, dataset: Choice, model: Choice, where: Where) -> None:
    """Refuse (`ConfigError`) what computes with one input, where samples have several."""
    if getattr(entry.target, "one_input", False):
        names = [kind.name for kind in materials.modalities_of(dataset.spec)]
        problem = f"{entry.name} computes with one input, but {model.text} takes "
        problem += f"{' and '.join(names)} of {dataset.text}"
        raise ConfigError(where, problem, "a model of one input, or clients that hold one each")


def check_trained_on(train_on: object, holding: Held, where: Where) -> None:
    """Refuse (`ConfigError`) ``train_on:`` where clients differ in modality."""
    if holding in DIFFER and train_on is not None:
        problem = f"is {train_on!r}, but clients differ in modality"
        raise ConfigError(where, problem, "a partition without `modalities`, or no `train_on`")
