"""Whether a data set, partition, model and method work with clients of several modalities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fl.code import registry
from fl.data import holdings, materials
from fl.data.modality import MODALITY
from fl.errors import ConfigError
from fl.places import path_of
from fl.study.components import Choice


def check(model: Choice, dataset: Choice, scheme: Choice) -> bool:
    """Whether clients differ in modality; a combination that cannot work is a `ConfigError`."""
    kinds = [kind.name for kind in materials.modalities_of(dataset.spec)]
    counts = _counts(scheme, dataset, kinds)
    wanted = getattr(model.entry.target, "modalities", ())
    if counts is None:
        if wanted:
            problem = f"{model.text} is for clients that have {' or '.join(wanted)}, but with "
            problem += f"{scheme.text} all have the same kind of input"
            allowed = "a partition that says `modalities`, or another model"
            raise ConfigError(model.at, problem, allowed)
        return False
    if set(wanted) != set(kinds):
        first = counts[0]
        holders = f"clients {first} to {first + counts[1] - 1}"
        problem = f"{model.text} takes one kind of input, but {holders} of {scheme.text} have "
        problem += f"{kinds[1]}, where others have {kinds[0]}"
        models = [
            one.name
            for one in registry.entries("model")
            if set(getattr(one.target, "modalities", ())) == set(kinds)
        ]
        raise ConfigError(model.at, problem, ", ".join(models) or f"a model for {', '.join(kinds)}")
    return True


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
    if len(kinds) < 2:
        raise ConfigError(at, f"{problem}, but {dataset.text} has one kind of input", "none")
    if len(given) != len(kinds):
        raise ConfigError(at, problem, f"{len(kinds)} numbers of clients, for {told}")
    for kind, count in zip(kinds, given, strict=True):
        if not count:
            raise ConfigError(at, f"{problem}: no client has {kind}", f"1 or more for {told} each")
    clients = scheme.values.get("clients", sum(given))
    if sum(given) != clients:
        raise ConfigError(at, f"{problem}, {sum(given)} clients", f"{clients} together")
    return list(given)


def check_analyses(several: bool, analyses: Sequence[Choice]) -> None:
    """Refuse (`ConfigError`) an analysis that passes inputs of one kind through one network."""
    for one in analyses:
        if several and getattr(one.entry.target, "weights", False):
            problem = f"{one.entry.name} looks into one model, but clients have several modalities"
            raise ConfigError(one.at, problem, "a partition without `modalities`")
