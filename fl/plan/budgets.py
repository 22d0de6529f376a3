"""Entries that train a client longer or shorter in a round than their study's ``training:`` says.

Values that a method declares for itself override those of the study, which is easily overlooked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from fl.base.units import config_text
from fl.plan.grids import EXCLUSIVE
from fl.plan.method_entries import MethodEntry

LISTED_ENTRIES = 6
"""Entries that a note names; of more, it gives the number."""


def budget_notes(entries: Iterable[MethodEntry], without_passes: Collection[str]) -> list[str]:
    """Return a note for all entries with the same budget that is not their study's.

    What an entry sets itself is no surprise, and is left out.

    Args:
        entries: The method entries of a study.
        without_passes: Labels of entries that train no client, so that no budget concerns them.
    """
    labels_of: dict[str, list[str]] = {}
    for entry in entries:
        if entry.label not in without_passes and (budget := other_budget(entry)):
            labels_of.setdefault(budget, []).append(entry.label)
    notes: list[str] = []
    for budget, labels in labels_of.items():
        names = ", ".join(labels[:LISTED_ENTRIES])
        if len(labels) > LISTED_ENTRIES:
            names += f" and {len(labels) - LISTED_ENTRIES} more"
        place = "the entry" if len(labels) == 1 else "each entry"
        notes.append(f"{names}: {budget} in {place}")
    return notes


def other_budget(entry: MethodEntry) -> str:
    """Return in words that a method or its file sets another budget than the study.

    Empty if the study or the entry sets it, and if both lengths are equal.
    """
    layers = entry.layers
    study_length, entry_length = _length(layers.study.values), _length(layers.entry.values)
    in_file, declared = _length(layers.method.values), _length(entry.declared.training)
    length = in_file or declared
    if entry_length or not study_length or not length or length == study_length:
        return ""
    source = str(layers.method.location) if in_file else f"the method {entry.method.name}"
    return (
        f"in a round, a client trains for {length}, not for {study_length} as the study's "
        f"`training:` says, because {source} sets it. Try: {study_length}"
    )


def _length(values: Mapping[str, Any]) -> str:
    """Return the key and the value of a length of local training; empty if none is set."""
    lengths = [key for key in EXCLUSIVE if values.get(key) is not None]
    return ", ".join(f"{key}: {config_text(values[key])}" for key in lengths)
