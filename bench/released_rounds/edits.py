"""An expression of a peer's code, and the one that takes its place."""

from __future__ import annotations

from typing import NamedTuple


class Edit(NamedTuple):
    """A replaced expression of a peer's code.

    Attributes:
        file: The file, below PFLlib's `system`.
        old: The expression in the released code.
        new: The expression in its place.
        reason: What the released code does, and why it is replaced.
    """

    file: str
    old: str
    new: str
    reason: str
