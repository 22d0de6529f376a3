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


@pytest.mark.parametrize(
    ("entry", "needed"),
    [
        ({"selection": "divfl"}, "1.81 MB"),
        ({"selection": {"divfl": {"gradients": "last"}}}, "2.45 MB"),
        ({"devices": "equal", "asynchronous": {"ca2fl": {"size": 2, "concurrency": 3}}}, "1.20 MB"),
        ({"devices": "equal", "asynchronous": FEDBUFF}, ""),
        ({"selection": "oort"}, ""),
    ],
)
def test_a_server_that_keeps_much_of_each_client_is_told_of(
    tmp_path: Path, entry: dict[str, Any], needed: str
) -> None:
    """A row of the MLP's 365 weights for each of 400 clients, twice, takes 1.17 MB."""
    partition = {"dirichlet": {"clients": 400, "alpha": 0.5, "min_samples": 3}}
    study = {
        "datasets": [{"synthetic": {"clients": 400, "samples": 40, "alpha": 1.0}}],
        "partitions": [partition],
        "methods": {"entry": {"method": "fedavg", **entry, "execution": {"memory_mb": 1}}},
    }
    made = plan.make(planning.write_config(tmp_path, study))
    [notes] = [study.notes for study in made.studies.values()]
    assert [needed in note for note in notes if "400 clients" in note] == [True] * bool(needed)


def test_a_kept_state_has_what_a_server_keeps_of_clients(tmp_path: Path) -> None:
    """CA2FL keeps a row of weights for each of four clients, their mean, and four versions."""
    entries = [{}, {"devices": "equal", "asynchronous": {"ca2fl": {"size": 2, "concurrency": 3}}}]
    plain, kept = (
        planned(tmp_path / str(number), entry)[0].state_bytes
        for number, entry in enumerate(entries)
    )
    assert kept == plain + 4 * plain + plain + 4 * plain


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
