from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd
import planning
import pytest
import yaml

from fl.base.errors import ConfigError, Location
from fl.base.schema import RESULT_COLUMNS
from fl.plan import config
from fl.plan.config import Execution

ASKED = Location("config/config.yaml", "studies")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return planning.write_config(tmp_path)


def read(folder: Path, text: str | bytes) -> dict[str, Any]:
    path = folder / "a.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return config.read_yaml(path)


def refusal(folder: Path, text: str | bytes) -> str:
    """The message about a file, after its name."""
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    name = os.path.relpath(folder / "a.yaml")
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    assert "\n" not in message
    return message.removeprefix(f"{name}: ")


def study(folder: Path, **changes: Any) -> config.Study:
    path = folder / "studies" / "tiny.yaml"
    path.write_text(yaml.safe_dump({**planning.STUDY, **changes}))
    return config.read_study(folder, "tiny", ASKED)[0]


def study_refusal(folder: Path, **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        study(folder, **changes)
    name = os.path.relpath(folder / "studies" / "tiny.yaml")
    return str(caught.value).removeprefix(f"{name}: ")


# YAML


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("lr: 1\nmu: 2\nlr: 1\n", "lr", 3),
        ("a: {x: 1, x: 2}\n", "x", 1),
    ],
)
def test_a_key_that_stands_twice(folder: Path, text: str, key: str, line: int) -> None:
    message = refusal(folder, text)
    assert message == f"is not valid YAML: the key {key!r} is a duplicate (line {line})"


@pytest.mark.parametrize(
    "text",
    [
        "datasets: [digits\n",
        "a: !!python/object:os.system {}\n",
        "a: 1\n---\nb: 2\n",
    ],
)
def test_what_is_no_yaml(folder: Path, text: str) -> None:
    assert refusal(folder, text).startswith("is not valid YAML: ")


def test_what_cannot_be_read(folder: Path) -> None:
    assert refusal(folder, b"title: \xff\xfe\n").startswith("cannot be read: ")
    for path, problem in ((folder / "none.yaml", "does not exist"), (folder, "cannot be read: ")):
        with pytest.raises(ConfigError) as caught:
            config.read_yaml(path)
        assert str(caught.value).startswith(f"{os.path.relpath(path)}: {problem}")


# config.yaml


def test_settings(folder: Path) -> None:
    found = config.read_settings(folder)
    assert found.studies == ("tiny",)
    assert found.execution == Execution(**planning.EXECUTION)
    (folder / "config.yaml").write_text("studies: [a, b]\n")
    assert config.read_settings(folder) == config.Settings(studies=("a", "b"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "studies: is missing. Allowed: a list, each text"),
        ("studies: tiny\n", "studies: is 'tiny'. Allowed: a list, each text. Try: [tiny]"),
        (
            "studies: []\nexecution: {backend: stack}\n",
            "execution.backend: unknown value 'stack' (did you mean 'stacked'?). "
            "Allowed: auto, compiled, debug, loop, stacked",
        ),
        (
            "studies: []\nstor: x\n",
            "stor: unknown key 'stor' (did you mean 'store'?). "
            "Allowed: data, execution, nodes, plugins, results, sources, store, studies",
        ),
        (
            "studies: []\nsources: {digits: /no/such/folder}\n",
            "sources.digits: is '/no/such/folder'. "
            "Allowed: an existing folder, or an http:// or https:// address",
        ),
    ],
)
def test_settings_that_are_wrong(folder: Path, text: str, message: str) -> None:
    (folder / "config.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.read_settings(folder)
    assert str(caught.value) == f"{os.path.relpath(folder / 'config.yaml')}: {message}"


# Studies


def test_a_study_and_its_place(folder: Path) -> None:
    found, location = config.read_study(folder, "tiny", ASKED)
    assert location == Location(os.path.relpath(folder / "studies" / "tiny.yaml"))
    assert (found.seeds, found.metric, found.methods) == ([0], None, {"fedavg": None})


SEED = "a whole number >= 0"
SEEDS = "a number of seeds, 1 or more, a list of seeds such as [7], or per-draw"


def test_one_seed_is_said_to_be_a_list() -> None:
    error = config.unknown_key(Location("a.yaml") / "seed", "seed", ["seeds", "rounds"])
    assert "did you mean 'seeds'?" in str(error) and "seeds: [7]" in error.advice


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ([1, 2, 1], "seeds.2: 1 is a duplicate. Try: each seed once"),
        (
            [0, 2**63],
            f"seeds.1: is 9223372036854775808. Allowed: {SEED} and <= 9223372036854775807",
        ),
        ([0.5], f"seeds.0: is 0.5 (float). Allowed: {SEED}"),
        (0, f"seeds: is 0. Allowed: {SEEDS}"),
        (True, f"seeds: is True. Allowed: {SEEDS}"),
        ("each", f"seeds: is 'each'. Allowed: {SEEDS}"),
        ([], "seeds: is empty. Allowed: at least one"),
    ],
)
def test_seeds_that_are_wrong(folder: Path, seeds: Any, message: str) -> None:
    assert study_refusal(folder, seeds=seeds) == message


def test_short_forms_are_those_of_a_call(folder: Path) -> None:
    short = study(folder, methods=["local", {"mine": {"method": "fedprox", "mu": 1}}], seeds=3)
    assert short.methods == {"local": None, "mine": {"method": "fedprox", "mu": 1}}
    assert short.seeds == [0, 1, 2]
    path = folder / "studies" / "tiny.yaml"
    keys = {key: value for key, value in planning.STUDY.items() if key != "seeds"}
    path.write_text(yaml.safe_dump({**keys, "methods": "fedavg"}))
    one = config.read_study(folder, "tiny", ASKED)[0]
    assert (one.methods, one.seeds) == ({"fedavg": None}, [0])


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (
            ["local", {"local": None}],
            "methods.1: the entry 'local' is a duplicate. Try: a name of its own for each",
        ),
        (["local", 3], "methods.1: is 3. Allowed: a mapping (key: value)"),
        ([], "methods: is empty. Allowed: at least one"),
        (3, "methods: is 3. Allowed: a mapping (key: value)"),
    ],
)
def test_entries_that_are_wrong(folder: Path, methods: Any, message: str) -> None:
    assert study_refusal(folder, methods=methods) == message


def test_the_largest_seed_fits_into_the_tables(folder: Path) -> None:
    seeds = study(folder, seeds=[2**63 - 1]).seeds
    assert pd.Series(seeds, dtype=RESULT_COLUMNS["seed"]).tolist() == seeds


def test_a_former_name_of_a_key_is_read_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "config.yaml"
    path.write_text("studies: [a]\nexecution: {partition: gpu}\nnodes: [{partition: gpu}]\n")
    found = config.read_settings(tmp_path)
    assert found.execution.slurm_partition == "gpu" and found.nodes[0].slurm_partition == "gpu"
    assert "config.yaml: execution.partition: is called `slurm_partition` now" in caplog.text
    path.write_text("studies: [a]\nexecution: {partition: gpu, slurm_partition: cpu}\n")
    with pytest.raises(ConfigError, match="is the former name of `slurm_partition`, which is set"):
        config.read_settings(tmp_path)
