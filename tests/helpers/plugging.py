"""Methods whose source is in a page of the docs, as a plugin of one test."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from fl.base import plugins
from fl.base.errors import Location


def use_methods(sources: Mapping[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use methods until the end of a test.

    Args:
        sources: Source of each method by the name of its file, without ``.py``.
        folder: The test's own folder.
        monkeypatch: What forgets the plugin afterwards.
    """
    lab = folder / f"lab_{folder.name}"
    (lab / "methods").mkdir(parents=True)
    for name, source in sources.items():
        (lab / "methods" / f"{name}.py").write_text(source)
    monkeypatch.setattr(plugins, "_roots", dict(plugins.roots()))
    monkeypatch.setattr(sys, "path", list(sys.path))
    plugins.use([str(lab)], Location("the test"))
