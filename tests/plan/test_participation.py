"""Devices, selection and asynchronous servers in a study: what contradicts is told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import planning
import pytest

from fl.base.errors import ConfigError
from fl.plan import plan

FEDBUFF = {"fedbuff": {"size": 2, "concurrency": 3}}


def planned(root: Path, entry: dict[str, Any], method: str = "fedavg") -> list[Any]:
    methods = {"entry": {"method": method, **entry}}
    study = {"training": {"rounds": 4, "batch_size": 8, "lr": 0.05}, "methods": methods}
    return [*plan.make(planning.write_config(root, study)).runs.values()]


@pytest.mark.parametrize(
    ("method", "entry", "words"),
    [
        ("fedavg", {"asynchronous": FEDBUFF}, ["entry", "asynchronous", "devices"]),
        ("fedavg", {"deadline": 3.0}, ["deadline", "devices"]),
        ("fedavg", {"over_selection": 1.5, "participation": 0.5}, ["over_selection", "devices"]),
        (
            "fedavg",
            {"devices": "equal", "stragglers": 0.5, "local_steps": 2},
            ["stragglers", "devices"],
        ),
        ("fedavg", {"devices": "equal", "stragglers": 0.5}, ["stragglers", "leave out", "devices"]),
        (
            "fedavg",
            {"devices": "equal", "asynchronous": FEDBUFF, "aggregation": "median"},
            ["aggregation", "asynchronous"],
        ),
        (
            "fedavg",
            {"devices": "equal", "asynchronous": {"fedbuff": {"size": 2, "concurrency": 99}}},
            ["asynchronous.fedbuff.concurrency", "99"],
        ),
        (
            "fedavg",
            {"devices": "equal", "asynchronous": {"fedbuff": {"size": 3, "concurrency": 2}}},
            ["asynchronous.fedbuff.size", "3"],
        ),
        ("scaffold", {"devices": "equal", "asynchronous": FEDBUFF}, ["SCAFFOLD", "weights"]),
        ("fedavg", {"devices": "unequal"}, ["devices.unequal", "equal"]),
        (
            "fedavg",
            {"devices": {"log-normal": {"speed_sigma": [0.5, 1.5]}}},
            ["devices.log-normal.speed_sigma", "0.5 and 1.5"],
        ),
        ("fedrep", {"selection": "loss-proportional"}, ["selection", "FedRep", "last"]),
        ("fedavg", {"selection": {"fedcs": {"deadline": 9.0}}}, ["entry", "selection", "devices"]),
        (
            "fedavg",
            {"selection": {"power-of-choice": {"candidates": 99}}},
            ["entry", "selection.candidates", "99"],
        ),
        (
            "fedavg",
            {"devices": "equal", "selection": {"tifl": {"tiers": 99}}},
            ["entry", "selection.tiers", "99"],
        ),
    ],
)
def test_what_contradicts_is_told_before_training(
    tmp_path: Path, method: str, entry: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        planned(tmp_path, entry, method)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize("key", ["selection", "asynchronous", "aggregation", "upload_filters"])
def test_a_key_of_entries_elsewhere_is_told_its_place(tmp_path: Path, key: str) -> None:
    for i, keys in enumerate(({key: "oort"}, {"training": {key: "oort"}})):
        study = {"methods": {"fedavg": None}, **keys}
        with pytest.raises(ConfigError) as raised:
            plan.make(planning.write_config(tmp_path / str(i), study))
        assert f"{{fedavg: {{{key}: ...}}}}" in str(raised.value)
        assert len(str(raised.value).partition(f"{key}: ")[2]) < 120


def test_a_value_to_reach_is_a_share_where_the_metric_is_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        plan.make(planning.write_config(tmp_path, {"methods": {"fedavg": None}, "goal": 80}))
    assert raised.value.location.key == "goal" and "80" in str(raised.value)


def test_runs_with_a_clock_have_names_of_their_own(tmp_path: Path) -> None:
    [plain] = planned(tmp_path / "a", {})
    [timed] = planned(tmp_path / "b", {"devices": "equal"})
    [buffered] = planned(tmp_path / "c", {"devices": "equal", "asynchronous": FEDBUFF})
    [late] = planned(tmp_path / "d", {"devices": "equal", "deadline": 9.0})
    assert len({plain.run, timed.run, buffered.run, late.run}) == 4
    assert "devices" not in plain.spec
    assert buffered.spec["asynchronous"][0]["name"] == "fedbuff"
