"""Fixtures of the tests of notebooks."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
from notebooks import CELLS, cell

from fl.base import plugins


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The names that a notebook has after its cells, which it keeps as IPython does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "_roots", dict(plugins.roots()))
    notebook = types.ModuleType("notebook_of_a_test")
    monkeypatch.setitem(sys.modules, notebook.__name__, notebook)
    for text in CELLS:
        cell(notebook, text)
    return notebook
