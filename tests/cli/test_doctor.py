"""The lines of ``fedloom doctor`` about installed packages."""

from __future__ import annotations

import pytest

from fl.cli import doctor


def test_an_extra_is_told_by_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line must not sound as if models were stored here."""
    monkeypatch.setattr(doctor, "is_installed", lambda name: True)
    assert doctor._missing_packages("pretrained") == "all packages are here"
    monkeypatch.setattr(doctor, "is_installed", lambda name: name != "timm")
    said = doctor._missing_packages("pretrained")
    assert said.startswith("missing: timm (pretrained models of images). Try: ")
