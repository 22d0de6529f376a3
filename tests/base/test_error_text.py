"""Where an error comes from: a line of the user's own code, where it went through any."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.func import vmap

from fl.base import plugins
from fl.base.errors import Location

CODE = """
def fails(what):
    return helper(what)


def helper(what):
    return what["absent"]


def number(x):
    return float(x)
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of a plugin."""
    folder = tmp_path / "faultylab"
    folder.mkdir()
    (folder / "mine.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "_roots", plugins.roots())
    plugins.use([str(folder)], Location("config.yaml") / "plugins")
    monkeypatch.chdir(tmp_path)
    yield "faultylab.mine"
    for name in ("faultylab.mine", "faultylab"):
        sys.modules.pop(name, None)


def test_the_last_line_of_the_users_own_is_named(lab: str) -> None:
    with pytest.raises(KeyError) as caught:
        importlib.import_module(lab).fails({})
    assert plugins.describe(caught.value) == "faultylab/mine.py, line 7: KeyError: 'absent'"


def test_a_tensor_taken_for_a_number_in_a_stack_has_a_remedy(lab: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        vmap(importlib.import_module(lab).number)(torch.ones(2))
    told = plugins.describe(caught.value)
    assert told.startswith("faultylab/mine.py, line 11: RuntimeError: vmap: ")
    assert told.endswith(
        "this is impossible in a stack of clients; try `execution: {backend: loop}`"
    )
