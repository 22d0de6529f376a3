"""All errors of a config in one message, and none that is a consequence of another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import planning
import pytest

import fl
from fl.base.errors import ConfigError
from fl.plan import plan


def errors(root: Path, study: dict[str, Any], settings: dict[str, Any] | None = None) -> list[str]:
    """Plan a study; the location and the first words of each error."""
    with pytest.raises(ConfigError) as raised:
        plan.make(planning.write_config(root, study, settings))
    lines = str(raised.value).splitlines()
    return [line.split("config/")[1].removeprefix("studies/") for line in lines]


def test_keys_components_methods_and_scenarios_are_told_together(tmp_path: Path) -> None:
    wrong = {
        "titel": "x",
        "execution": {"threads": 0},
        "training": {"lr": -1, "momentm": 0.9, "nesterov": True},
        "models": [{"mlp": {"hidn": [5]}}, {"mlp": {"hidden": [5]}}],
        "partitions": [{"dirichlet": {"clients": 400, "alpha": 0.5}}],
        "analyses": ["confusio"],
        "baseline": "fedavgg",
        "methods": {
            "fedprx": {"batch_size": -3},
            "fedprox": {"mu": [0.1, "x"], "local_epochs": 2, "local_steps": 3, "title": 5},
            "ditto": {"terms": {"moonn": None}, "stragglers": 0.5},
            "ft": {"method": "finetune", "start": "fedprx"},
            "nobody": {"method": "finetune", "start": "somebody"},
        },
    }
    found = errors(tmp_path, wrong, {"execution": {"thread": 1}})
    places = [line.split(": ")[:2] for line in found]
    tiny = [place for file, place in places if file == "tiny.yaml"]
    assert places[0] == ["config.yaml", "execution.thread"]
    assert sorted(tiny) == [
        "analyses.0",
        "baseline",
        "execution.threads",
        "methods.ditto.stragglers",
        "methods.ditto.terms.moonn",
        "methods.fedprox.local_steps",
        "methods.fedprox.mu",
        "methods.fedprox.title",
        "methods.fedprx",
        "methods.fedprx.batch_size",
        "methods.nobody.start",
        "models.0.mlp.hidn",
        "partitions.0.dirichlet.clients",
        "titel",
        "training.lr",
        "training.momentm",
    ]


@pytest.mark.parametrize(
    ("study", "places"),
    [
        ({"training": {"optimizer": "adm", "momentum": 0.9, "nesterov": True}}, "optimizer"),
        ({"training": {"shedule": "cosine", "schedule_by": "steps"}}, "shedule"),
        ({"training": {"stragglers": 2, "partial_work": "dropped"}}, "stragglers"),
        ({"methods": {"fedavg": {"momentum": "x", "nesterov": True}}}, "momentum"),
        ({"basline": "fedavg", "contrasts": {"a": "b"}, "methods": 3}, "basline methods"),
        ({"basline": "a", "contrasts": {"fedavg": "local"}}, "basline fedavg"),
        ({"seed": [1], "seeds": None}, "seed seeds"),
        (
            {"methods": {"a": {"method": "fedavg", "lr": -1}, "b": {"method": "warm-up", "lr": 0}}},
            "lr lr",
        ),
        ({"methods": {"a": {"method": "nothing"}, "b": {"method": "finetune", "start": "a"}}}, "a"),
        ({"grid": "published", "best": {"source": 3}}, "column rows source table"),
        ({"metric": "reweighted_accuracy", "test": "reweightd"}, "test"),
        ({"models": ["cnn"], "analyses": ["no"]}, "0 cnn"),
        (
            {
                "models": ["cnn"],
                "published": [{"source": "no.csv", "table": "1", "rows": {}, "columns": {}}],
            },
            "cnn source",
        ),
    ],
)
def test_an_error_raises_no_second_one(tmp_path: Path, study: dict[str, Any], places: str) -> None:
    found = [line.split(": ")[1].rpartition(".")[2] for line in errors(tmp_path, study)]
    assert sorted(found) == places.split()


WRONG_METHODS: dict[str, Any] = {
    "fedavg": {"batch_size": 5000},
    "scaffold": {"terms": {"mmd-d": {"layers": ["x"]}}, "lr": [0.1, 0.2]},
    "ft": {"method": "finetune", "start": "fedavg", "early_stopping": 3},
}


@pytest.mark.parametrize(
    "partition",
    [
        {"dirichlet": {"clients": 400, "alpha": 0.5}},
        {"dirichlet": {"clients": 4, "alpha": 0.5, "test": "published"}},
        {"domain": {"clients_per_domain": 2}},
        {"dirichlt": {"clients": 4}},
        {"dirichlet": {"clients": -4, "alpha": 0.5}},
        {"file": {"path": "absent.csv"}},
    ],
)
def test_methods_are_checked_without_a_partition_that_fits(
    tmp_path: Path, partition: dict[str, Any]
) -> None:
    keys = next(iter(partition.values()))
    partition = {next(iter(partition)): keys | ({} if "path" in keys else {"val": 0.1})}
    study = {"partitions": [partition], "methods": WRONG_METHODS, "seeds": "per-draw"}
    found = {line.split(": ")[1] for line in errors(tmp_path, study)}
    assert any(key.startswith("partitions.0") for key in found)
    assert found - {key for key in found if key.startswith("partitions.0")} == {
        "methods.fedavg.batch_size",
        "methods.scaffold",
    }


def test_methods_are_checked_without_a_right_model(tmp_path: Path) -> None:
    study = {
        "models": [{"mlp": {"hidn": [3]}}],
        "partitions": [{"dirichlet": {"clients": 4, "alpha": 0.5, "val": 0}}],
        "methods": {
            "fedavg": {"lr": [0.1, 0.2]},
            "fedprox": {"class_weights": "balanced", "batch_size": 5000},
            "feddf": None,
        },
    }
    found = [line.split(": ")[1] for line in errors(tmp_path, study)]
    assert sorted(found) == [
        "methods.fedavg",
        "methods.feddf",
        "methods.fedprox.batch_size",
        "models.0.mlp.hidn",
    ]


def test_a_misspelt_key_is_not_missing_too(tmp_path: Path) -> None:
    config = planning.write_config(tmp_path, {})
    path = config / "studies" / "tiny.yaml"
    path.write_text(path.read_text().replace("datasets:", "dataset:"))
    with pytest.raises(ConfigError, match=r"dataset: unknown key .*'datasets'") as raised:
        plan.make(config)
    assert "missing" not in str(raised.value)


@pytest.mark.parametrize(
    ("study", "message"),
    [
        ({"device": "cuda"}, "device: unknown key 'device'. Try: write it under `execution`"),
        ({"lr": 0.1}, "lr: unknown key 'lr'. Try: write it under `training` or in an entry of"),
        ({"training": {"threads": 2}}, "threads: unknown key 'threads'. Try: write it under `ex"),
        ({"clients": 4}, "clients: unknown key 'clients'. Try: write it in a partition"),
        ({"methods": {"fedavg": {"seeds": [1]}}}, "seeds: unknown key 'seeds'. Try: write it at"),
    ],
)
def test_a_key_of_another_part_is_told_its_place(
    tmp_path: Path, study: dict[str, Any], message: str
) -> None:
    [line] = errors(tmp_path, study)
    assert message in line


def test_progress_is_true_or_false(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"progress: is 'no' .str.. Allowed: true or false"):
        fl.run(
            dataset="digits", partition="natural", model="cnn", methods=["fedavg"], progress="no"
        )


def test_a_call_tells_all_its_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call: dict[str, Any] = {
        "dataset": "digits",
        "partition": {"homogeneous": {"clients": 4}},
        "methods": ["fedavgg"],
    }
    with pytest.raises(ConfigError) as raised:
        fl.run(**call, modell="cnn", momentm=0.9, nesterov=True, seeds=0)
    found = [line.split(": ")[1] for line in str(raised.value).splitlines()]
    assert sorted(found) == ["methods.fedavgg", "modell", "momentm", "seeds"]
