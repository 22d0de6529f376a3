"""Expressions of a peer's code, and those that take their place."""

from __future__ import annotations

from typing import NamedTuple

CLIENTS, SERVERS = "flcore/clients/", "flcore/servers/"
"""Folders of PFLlib's clients and servers, below its `system`."""


class Edit(NamedTuple):
    """A replaced expression.

    Attributes:
        file: The file, below PFLlib's `system`.
        old: The expression in the released code.
        new: The expression in its place.
    """

    file: str
    old: str
    new: str


class Departure(NamedTuple):
    """A difference of released code from the method's paper, or from what ours takes it to say.

    Attributes:
        reason: What the released code does.
        edits: The expressions that undo it.
    """

    reason: str
    edits: tuple[Edit, ...]
