"""Files in the exact formats of published data sets, with small generated content.

One module for each set, named as its reader, with

- ``write(folder, **broken) -> Made``: writes the files that the set's sources name, and says what
  must come out of them; keyword arguments leave out or spoil a part;
- ``PARAMS``: the config keys to read them with (``complete: false``, mostly);
- ``BROKEN``: by name, the keyword arguments of a ``write`` and a pattern of the error about it;
- ``STUDY`` (optional): keys of the study over it for `make fixtures-demo`; None if no model fits.

Facts about a format come from the set's own documentation or from a program that reads it, named in
the module's docstring.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

HELPERS = {"__init__", "packing", "server"}


@dataclass(frozen=True)
class Made:
    """The content that a reader must bring out of generated files.

    ``x`` has some inputs by row, exactly as they must be; so have ``inputs``, by the name of their
    array. The other arrays are whole.
    """

    samples: int
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    y: np.ndarray
    x: dict[int, np.ndarray]
    domains: tuple[str, ...] = ()
    domain: np.ndarray | None = None
    client: np.ndarray | None = None
    block: np.ndarray | None = None
    split: np.ndarray | None = None
    mask: dict[int, np.ndarray] | None = None
    text: dict[int, np.ndarray] | None = None
    inputs: dict[str, dict[int, np.ndarray]] | None = None


def names() -> list[str]:
    """The sets that have a generator, as the registry calls them."""
    found = Path(__file__).parent.glob("*.py")
    return sorted(path.stem.replace("_", "-") for path in found if path.stem not in HELPERS)


def generator(name: str) -> ModuleType:
    """The module that writes the files of a set."""
    return importlib.import_module(f"sources.{name.replace('-', '_')}")
