"""A run as an analysis sees it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

SETTING = ("digits", "natural", "mlp")


def source(**given: Any) -> Any:
    """A run as an analysis sees it; ``given`` are its attributes, and what its methods return."""
    plain: dict[str, Any] = {"run": "r0", "method": "m", "setting": SETTING, "seed": 0}
    called = {key: (lambda value=value: value) for key, value in given.items() if key not in plain}
    return SimpleNamespace(**{**plain, **{k: given[k] for k in plain if k in given}, **called})
