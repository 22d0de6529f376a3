"""Files of tracks, their grids and their studies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import toy_track

from fl.base.errors import ConfigError, single_errors
from fl.plan import track
from fl.plan.track import SCORED, TUNING, Trial

ROOT = Path(__file__).resolve().parents[2]
METHODS = toy_track.TRACK["methods"]
FAMILIES = toy_track.TRACK["families"]


@pytest.mark.parametrize(
    ("keys", "places"),
    [
        ({"margin": None}, {"margin"}),
        ({"margin": 0, "metric": "loss"}, {"margin", "metric"}),
        ({"sense": 3}, {"sense"}),
        ({"lr": []}, {"lr"}),
        ({"lr": [0.1, 0.1]}, {"lr.1"}),
        ({"methods": {**METHODS, "fedprox": {"mu": [0, -1]}}}, {"methods.fedprox.mu"}),
        ({"methods": {**METHODS, "fedprox": {"mu": [0, 0]}}}, {"methods.fedprox.mu.1"}),
        ({"methods": {**METHODS, "fedprox": {"nu": 0}}}, {"methods.fedprox.nu"}),
        ({"methods": {**METHODS, "fedavg": {"dataset": "fars"}}}, {"methods.fedavg.dataset"}),
        ({"methods": {**METHODS, "fedroks": None}}, {"methods.fedroks"}),
        ({"methods": {**METHODS, "local": None}}, {"methods.local"}),
        (
            {"methods": {**METHODS, "fedavg-ft": {**METHODS["fedavg-ft"], "start": "fedsam"}}},
            {"methods.fedavg-ft.start"},
        ),
        (
            {"methods": {**METHODS, "fedavg-ft": {"method": "finetune", "start": "fedavg"}}},
            {"methods.fedavg-ft.rounds"},
        ),
        (
            {"methods": {**METHODS, "fedavg-ft": {**METHODS["fedavg-ft"], "rounds": [1, 4]}}},
            {"methods.fedavg-ft.rounds"},
        ),
        (
            {"families": {**FAMILIES, "personal": {"baseline": "local", "entries": ["fedsam"]}}},
            {"families.personal.baseline", "families.personal.entries.0"},
        ),
        (
            {"families": {**FAMILIES, "personal": {"entries": ["fedavg"]}}},
            {"families.personal.baseline"},
        ),
        (
            {"families": {**FAMILIES, "shared": {"baseline": "fedavg", "entries": []}}},
            {"families.shared.entries", "methods.fedprox"},
        ),
        (
            {"families": {**FAMILIES, "personal": {"baseline": "fedavg", "entries": ["fedavg"]}}},
            {"families.personal.entries.0"},
        ),
        ({"clients": {"newcomers": 0}}, {"families.newcomers.clients"}),
        ({"no_ops": {"fedprox": {"mu": 0.5, "is": "fedavg"}}}, {"no_ops.fedprox.mu"}),
        ({"no_ops": {"fedprox": {"mu": 0}}}, {"no_ops.fedprox.is"}),
        ({"no_ops": {"fedprox": {"mu": 0, "is": "fedprox"}}}, {"no_ops.fedprox.is"}),
        ({"no_ops": {"fedsam": {"rho": 0, "is": "fedavg"}}}, {"no_ops.fedsam"}),
        ({"no_ops": {"fedprox": {"is": "fedavg"}}}, {"no_ops.fedprox"}),
        ({"budgets": [{"times": 4}]}, {"budgets"}),
        ({"budgets": [{"times": 1, "best": 3}]}, {"budgets.0.best"}),
        ({"always": ["locale"]}, {"always.0"}),
        ({"draws": {"scored": [0, 0]}}, {"draws.scored.1"}),
        ({"draws": {"scored": [0]}}, {"draws.scored"}),
        ({"partition": {"natural": {"unseen": 0.2}}}, {"partition.natural.unseen"}),
        ({"training": {"local_steps": 2}}, {"training.rounds"}),
        ({"training": {"rounds": 4, "lr": 0.1}}, {"training.lr"}),
    ],
)
def test_what_is_wrong_with_a_file_has_a_place(keys: dict[str, Any], places: set[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        toy_track.parsed(**keys)
    found = {error.location.key for error in single_errors(caught.value)}
    assert found == places
    assert all(error.location.file == "toy.yaml" for error in single_errors(caught.value))


def test_an_unknown_track_is_named(tmp_path: Path) -> None:
    toy_track.write(tmp_path)
    assert track.names(tmp_path) == ["toy"]
    with pytest.raises(ConfigError, match="toy"):
        track.read(tmp_path, "toi")


@pytest.mark.parametrize("name", track.names(ROOT / "config"))
def test_the_files_of_the_package_are_right(name: str) -> None:
    found = track.read(ROOT / "config", name)
    assert {f.clients for f in found.families.values()} == {"participants", "newcomers"}
    assert len(found.draws.scored) == 8
    assert found.title_of("fedavg-ft") == "FedAvg-FT"


def test_titles_are_those_of_methods_and_starts() -> None:
    methods = {**METHODS, "fedavg": {"title": "Mean"}}
    found = toy_track.parsed(methods=methods)
    titles = {name: found.title_of(name) for name in found.methods}
    assert titles == {"fedavg": "Mean", "fedprox": "FedProx", "fedavg-ft": "Mean-FT"}


def test_values_beyond_an_edge_go_on_by_the_ratio_and_keep_to_bounds() -> None:
    methods = {
        **METHODS,
        "fedavgm": {"beta": [0, 0.5, 0.75]},
        "feddyn": {"alpha": [0.01, 0.1]},
        "fedfm": {"loss": ["contrastive", "squared"]},
    }
    shared = {"baseline": "fedavg", "entries": ["fedprox", "fedavgm", "feddyn", "fedfm"]}
    no_ops = {"fedavgm": {"beta": 0, "is": "fedavg"}}
    found = toy_track.parsed(
        methods=methods, families={**FAMILIES, "shared": shared}, no_ops=no_ops
    )

    def beyond(name: str, key: str, end: Any, times: int = 1) -> list[Any]:
        values = found.grid(name, times)[key]
        return found.beyond(name, key, values, times, end).get(key, [])

    assert beyond("fedavg", "lr", 0.05) == [0.025, 0.0125]
    assert beyond("fedavg", "lr", 0.1) == [0.2, 0.4]
    assert beyond("feddyn", "alpha", 0.01) == [0.001, 0.0001]
    assert beyond("feddyn", "alpha", 0.1) == [1, 10]
    # A momentum is at most 1, and nothing is beyond the no-op.
    assert beyond("fedavgm", "beta", 0.75) == [0.875, 0.9375]
    assert beyond("fedavgm", "beta", 0.5) == []
    assert beyond("fedavgm", "beta", 0.0) == []
    assert beyond("fedprox", "mu", 0.1) == [0.2, 0.4]
    # Fine-tuning leaves its start a round of the track's.
    assert beyond("fedavg-ft", "rounds", 2) == [3]
    assert beyond("fedavg-ft", "rounds", 1) == []
    assert beyond("fedavg-ft", "rounds", 8, times=4) == [12, 14]
    assert beyond("fedfm", "loss", "squared") == []


def test_a_study_has_an_entry_for_each_trial_and_a_start_with_the_other_rounds() -> None:
    found = toy_track.parsed()
    point = (("lr", 0.05), ("rounds", 1))
    trials = [
        Trial("fedprox", (("lr", 0.1), ("mu", 0.0))),
        Trial("fedavg-ft", point, (("lr", 0.1),)),
    ]
    study = track.study(found, SCORED, trials)
    entries = study.arguments["methods"]
    assert entries[study.labels[trials[0]]] == {"method": "fedprox", "lr": 0.1, "mu": 0.0}
    assert entries[study.labels[trials[1]]] == {
        **{"method": "finetune", "start": study.starts[trials[1]]},
        **{"rounds": 1, "lr": 0.05, "local_steps": 2},
    }
    assert entries[study.starts[trials[1]]] == {"method": "fedavg", "lr": 0.1, "rounds": 3}
    keys = study.arguments["partition"]["natural"]
    assert keys["part"] == "scored" and keys["seed"] == [0, 1, 2]
    assert keys["newcomer_samples"] == 5
    longer = track.study(found, TUNING, trials[:1], times=4)
    assert longer.arguments["training"]["rounds"] == 16
    assert longer.arguments["partition"]["natural"]["seed"] == [100]


def test_what_starts_from_a_no_op_equals_what_starts_from_the_entry_that_it_is() -> None:
    ft = METHODS["fedavg-ft"]
    methods = {**METHODS, "fedprox-ft": {**ft, "start": "fedprox", "title": "Other"}}
    personal = {"baseline": "fedavg-ft", "entries": ["fedprox-ft"]}
    found = toy_track.parsed(methods=methods, families={**FAMILIES, "personal": personal})
    point, own, none = (("lr", 0.05), ("rounds", 1)), (("mu", 0.1),), (("mu", 0.0),)
    assert found.equalled(Trial("fedprox", none)) == "fedavg"
    assert found.equalled(Trial("fedprox", own)) == ""
    assert found.equalled(Trial("fedprox-ft", point, none)) == "fedavg-ft"
    assert found.equalled(Trial("fedprox-ft", point, own)) == ""
    assert found.equalled(Trial("fedavg-ft", point, (("lr", 0.1),))) == ""
