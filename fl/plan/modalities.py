"""Clients that differ in the modality of their inputs: what a study may say of them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fl.base import registry
from fl.base.errors import ConfigError
from fl.data import partition_table
from fl.data.dataset import accepts_modalities, group_title, modalities_of
from fl.plan.components import Choice, Inputs


def inputs_by_modality(
    dataset: Choice, scheme: Choice, model: Choice, table: pd.DataFrame | None
) -> list[Inputs]:
    """Return the inputs of the clients of each modality; none if clients do not differ in it.

    Args:
        dataset: The data set.
        scheme: The partition.
        model: The model.
        table: The user's own table of the partition, if it has one.

    Raises:
        ConfigError: If the model takes one kind of input, or numbers of clients do not fit.
    """
    modalities, target = modalities_of(dataset.instance), model.component.target
    names = [modality.name for modality in modalities]
    counts = _clients_by_modality(dataset, scheme, table, names)
    if counts is None:
        return []
    if not accepts_modalities(target, modalities):
        first, last = counts[0], counts[0] + counts[1] - 1
        problem = f"{model.text} takes one kind of input, but clients {first} to {last} of "
        problem += f"{scheme.text} have {names[1]}, where others have {names[0]}"
        suitable = [
            component.name
            for component in registry.components("model")
            if accepts_modalities(component.target, modalities)
        ]
        allowed = ", ".join(suitable) or f"one for {', '.join(names)}"
        raise ConfigError(model.location, problem, allowed)
    classes = dataset.instance.classes
    separate = [Inputs(m.name, m.shape, classes, m.tokens) for m in modalities]
    joint = Inputs(group_title(modalities), (), classes, 0, modalities)
    return separate if len(counts) == len(names) else [*separate, joint]


def _clients_by_modality(
    dataset: Choice, scheme: Choice, table: pd.DataFrame | None, names: list[str]
) -> list[int] | None:
    """Return the number of clients of each modality; None if the partition names none."""
    counts, location = scheme.values.get("modalities"), scheme.location / "modalities"
    if table is not None:
        location = scheme.location / "path"
        if partition_table.MODALITY in table:
            counts = np.bincount(table.groupby("client")[partition_table.MODALITY].first()).tolist()
    if counts is None:
        return None
    problem, all_names = f"is {list(counts)}", " and ".join(names)
    groups = [*names, all_names][: len(counts)]
    if len(names) < 2:
        problem += f", but {dataset.text} has one kind of input"
        raise ConfigError(location, problem, "none")
    if len(counts) not in (len(names), len(names) + 1):
        allowed = f"{len(names)} numbers of clients, for {all_names}, and one more for all of "
        raise ConfigError(location, problem, allowed + "them at once")
    for name, count in zip(groups, counts, strict=True):
        if not count:
            allowed = f"1 or more for {', '.join(groups)} each"
            raise ConfigError(location, f"{problem}: no client has {name}", allowed)
    clients = scheme.values.get("clients", sum(counts))
    if sum(counts) != clients:
        problem += f", {sum(counts)} clients"
        raise ConfigError(location, problem, f"{clients} together")
    return list(counts)
