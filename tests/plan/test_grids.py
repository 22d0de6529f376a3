"""How large a study may become, told before it is expanded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import planning
import pytest

from fl.base.errors import ConfigError
from fl.plan import plan

HUNDREDTHS = [i / 100 for i in range(1, 301)]


@pytest.mark.parametrize(
    ("study", "said"),
    [
        (
            {"methods": {"fedprox": {"lr": HUNDREDTHS, "mu": HUNDREDTHS}}},
            "methods.fedprox: 90,000 points are asked for. Allowed: 10,000 runs of a study at most."
            " Try: `max_runs: 90000` in the study",
        ),
        (
            {"models": [{"mlp": {"hidden": [[a, b] for a in range(1, 102) for b in range(100)]}}]},
            "models.0.mlp: 10,100 points",
        ),
        ({"seeds": list(range(20_000))}, "tiny.yaml: 20,000 runs are asked for"),
        (
            {
                "methods": {
                    "fedavg": {"lr": HUNDREDTHS},
                    "ft": {"method": "finetune", "start": "fedavg", "lr": HUNDREDTHS[:34]},
                }
            },
            "tiny.yaml: 10,500 runs are asked for",
        ),
        (
            {"max_runs": 5, "seeds": list(range(6))},
            "6 runs are asked for. Allowed: 5 runs of a study at most. Try: `max_runs: 6`",
        ),
    ],
)
def test_more_runs_than_anybody_means_are_refused_at_once(
    tmp_path: Path, study: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = planning.write_config(tmp_path, study)
    # Counted before any of them is made.
    monkeypatch.setattr("fl.plan.expand.combinations", None)
    with pytest.raises(ConfigError) as caught:
        plan.make(config)
    assert said in str(caught.value)


def test_the_grid_of_what_an_entry_starts_from_keeps_its_names(tmp_path: Path) -> None:
    methods = {
        "fedavg": None,
        "ft": {"method": "finetune", "start": "fedavg"},
        "fixed": {"method": "finetune", "start": "fedavg", "lr": 0.5},
        "fedl2p": {"start": "fedavg"},
        "finetune-l2p": {"start": "fedl2p", "lr": 0.5},
    }
    study = {"training": {**planning.STUDY["training"], "lr": [0.01, 0.1]}, "methods": methods}
    study["partitions"] = [{"natural": {"val": 0.2}}]
    config = planning.write_config(tmp_path, study)
    runs = plan.make(config, checked=False).studies["tiny"].runs
    points = {label: [r.point for r in runs if r.method == label] for label in methods}
    both = [(own, before) for own in (0.01, 0.1) for before in (0.01, 0.1)]
    assert points["fedavg"] == [{"lr": 0.01}, {"lr": 0.1}]
    assert points["ft"] == [{"start.lr": before, "lr": own} for own, before in both]
    assert points["fixed"] == [{"start.lr": 0.01}, {"start.lr": 0.1}]
    assert points["finetune-l2p"] == [{"start.start.lr": 0.01}, {"start.start.lr": 0.1}]
    for label, own in points.items():
        named = {r.run: str(r.point) for r in runs if r.method == label}
        assert len(set(named.values())) == len(named) == len(own)


def test_two_entries_of_one_title_are_refused(tmp_path: Path) -> None:
    methods = {
        "a": {"method": "fedavg", "title": "Same"},
        "b": {"method": "local", "title": "Same"},
    }
    said = r"methods\.b\.title: is 'Same', which is the title of a too. Try: a title of its own"
    with pytest.raises(ConfigError, match=said):
        plan.make(planning.write_config(tmp_path, {"methods": methods}))
    methods["a"]["title"], methods["b"]["title"] = "caf\u00e9", "cafe\u0301"
    with pytest.raises(ConfigError, match=r"methods\.b\.title") as caught:
        plan.make(planning.write_config(tmp_path / "alike", {"methods": methods}))
    assert all(ascii(entry["title"]) in str(caught.value) for entry in methods.values())
