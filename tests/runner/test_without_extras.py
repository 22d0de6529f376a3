"""The core without extras: it plans and trains the same runs to the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from planning import Planned

import fl.extra

Plan = Callable[..., Planned]


def test_the_core_trains_the_same_run_without_extras(
    planned: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = planned(execution={"backend": "auto"})
    [run] = study.runs("fedavg")
    assert study.train("fedavg") == 0
    whole = json.loads((study.store().folder(run) / "run.json").read_text())
    assert whole["costs"]["bytes_up"] > 0
    monkeypatch.setattr(fl.extra, "HOOKS", {})
    assert study.train("fedavg", store="alone") == 0
    alone = json.loads((study.store("alone").folder(run) / "run.json").read_text())
    assert study.files(run, "alone") == study.files(run)
    assert alone["execution"]["backend"] == whole["execution"]["backend"]
    assert alone["costs"] == {"unknown": "no extra measures costs"}
