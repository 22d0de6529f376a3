"""Entries that train a client longer or shorter in a round than their study's ``training:`` says.

Values that a method declares for itself override those of the study, which is easily overlooked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from fl.base.units import config_text
from fl.plan.grids import EXCLUSIVE
from fl.plan.method_entries import MethodEntry

LISTED_ENTRIES = 6
"""Entries that a note names; of more, it gives the number."""


class OtherBudget(NamedTuple):
    """Training of a client in a round that is not the study's.

    Attributes:
        length: Its length, ``local_epochs: 1``.
        study_length: The length that the study says.
        source: What sets it.
    """

    length: str
    study_length: str
    source: str


def budget_notes(entries: Iterable[MethodEntry], without_passes: Collection[str]) -> list[str]:
    """Return a note for all entries with the same budget that is not their study's.

    What an entry sets itself is no surprise, and is left out.

    Args:
        entries: The method entries of a study.
        without_passes: Labels of entries that train no client, so that no budget concerns them.
    """
    labels: dict[OtherBudget, list[str]] = {}
    for entry in entries:
        budget = None if entry.label in without_passes else other_budget(entry)
        if budget is not None:
            labels.setdefault(budget, []).append(entry.label)
    return [_note(budget, several) for budget, several in labels.items()]


def other_budget(entry: MethodEntry) -> OtherBudget | None:
    """Return the budget of an entry if its method or the method's file sets another than the study.

    None is returned if the study or the entry sets it, and if both lengths are equal.
    """
    layers = entry.layers
    study_length, entry_length = _length(layers.study.values), _length(layers.entry.values)
    in_file, declared = _length(layers.method.values), _length(entry.declared.training)
    length = in_file or declared
    if entry_length or not study_length or not length or length == study_length:
        return None
    source = str(layers.method.location) if in_file else f"the method {entry.method.name}"
    return OtherBudget(length, study_length, source)


def _length(values: Mapping[str, Any]) -> str:
    """Return the key and the value of a length of local training; empty if none is set."""
    lengths = [key for key in EXCLUSIVE if values.get(key) is not None]
    return ", ".join(f"{key}: {config_text(values[key])}" for key in lengths)


def _note(budget: OtherBudget, labels: list[str]) -> str:
    names = ", ".join(labels[:LISTED_ENTRIES])
    if len(labels) > LISTED_ENTRIES:
        names += f" and {len(labels) - LISTED_ENTRIES} more"
    place = "the entry" if len(labels) == 1 else "each entry"
    return (
        f"{names}: in a round, a client trains for {budget.length}, not for {budget.study_length} "
        f"as the study's `training:` says, because {budget.source} sets it. "
        f"Try: {budget.study_length} in {place}"
    )
