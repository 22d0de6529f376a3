"""Which part of the server's tree clients get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fl.api import Tree


def all_but(*keys: str) -> Callable[[Tree], dict[str, Any]]:
    """The ``send`` of a method whose server keeps ``keys`` to itself."""
    return lambda server: {key: leaf for key, leaf in server.items() if key not in keys}
