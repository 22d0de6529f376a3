"""Seams: the points at which extras take part in what the core does.

The core must work without extras, and so does not import them. It declares a seam where an extra
may take part, and calls the seam's hooks:

    COMMANDS = Seam[Callable[[Subparsers], None]]("commands")

    for add_commands in COMMANDS.hooks():
        add_commands(subparsers)

``fl/extra/__init__.py`` lists by seam which functions join it.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Generic, TypeVar

Hook = TypeVar("Hook")


@dataclass(frozen=True)
class Seam(Generic[Hook]):
    """A point at which extras take part; ``Hook`` is the type of the functions that join it.

    Attributes:
        name: The seam's key in `fl.extra.HOOKS`.
    """

    name: str

    def hooks(self) -> list[Hook]:
        """Import and return the functions that join this seam, in the order of calls."""
        hooks: list[Hook] = []
        for address in importlib.import_module("fl.extra").HOOKS.get(self.name, ()):
            module, _, function = address.partition(":")
            hooks.append(getattr(importlib.import_module(module), function))
        return hooks
