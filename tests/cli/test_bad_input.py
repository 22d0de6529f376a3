"""The answer to wrong input: one message with file, key, value and what is allowed, and exit 1.

Through the command line, one case for each kind; what a room refuses is tested in its folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import planning
import pytest
import yaml

from fl.cli import main
from fl.plan import plan, plan_files

FILE = "studies/tiny.yaml"


@dataclass(frozen=True)
class Bad:
    """A config with something wrong, and what its message has to say."""

    study: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] | None = None
    file: str = FILE
    key: str = ""
    value: str = ""
    allowed: str = ""


def training(**values: Any) -> dict[str, Any]:
    return {"training": values}


def homogeneous(**values: Any) -> dict[str, Any]:
    return {"partitions": [{"homogeneous": {"clients": 3, **values}}]}


CASES = {
    # Unknown keys
    "key of a method's defaults": Bad(
        {"methods": {"fedprox": None}},
        defaults={"mv": 1},
        file="methods/fedprox.yaml",
        key="mv",
        value="did you mean 'mu'?",
        allowed="mu",
    ),
    # Unknown names
    # Wrong types
    "name of an entry": Bad(
        {"methods": {"a b": {"method": "fedavg"}}},
        key="methods.a b",
        value="'a b'",
        allowed="letters, digits",
    ),
    # Nothing, or twice
    # What does not fit together
    "all clients unseen": Bad(
        {"partitions": [{"homogeneous": {"clients": 3, "unseen": 3}}]},
        key="partitions.0.homogeneous.unseen",
        value="is 3, but there are 3 clients",
        allowed="a share < 1, or at most 2",
    ),
    "a best round that nobody can tell": Bad(
        {"scored": "best", "partitions": [{"homogeneous": {"clients": 3, "val": 0.0}}]},
        key="scored",
        value="is best, but homogeneous(",
        allowed="last, or a val > 0",
    ),
    "all samples for the server": Bad(
        {"partitions": [{"homogeneous": {"clients": 3, "server": 0.7}}]},
        key="partitions.0.homogeneous.server",
        value="is 0.7 beside val 0.1 and test 0.2",
        allowed="val + test + server < 1",
    ),
    "batch of one and batch normalisation over one value": Bad(
        {
            "datasets": ["digits"],
            "models": ["resnet18"],
            "training": {"batch_size": 32},
            "methods": {"fedavg": {"batch_size": [32, 1]}},
        },
        key="methods.fedavg.batch_size",
        value="is 1, too few for fedavg with resnet18 on digits (ValueError: Expected more than 1",
        allowed="2 or more",
    ),
    "batch that no data set fills": Bad(
        training(batch_size=1e9),
        key="training.batch_size",
        value="is 1000000000, more than the 160 samples of synthetic(alpha=1.0, clients=4",
        allowed="1 to 160",
    ),
    "more directions than features": Bad(
        {"methods": {"fedsac": {"k": 6}}},
        key="methods.fedsac",
        value="with mlp(hidden=[5]): fedsac: k is 6, but 5 features go into the classifier",
        allowed="1 to 5",
    ),
    "clients whose samples nothing holds": Bad(
        {"datasets": [{"synthetic": {"clients": 2_000_000_000}}]},
        key="datasets.0.synthetic",
        value="2,000,000,000 clients would hold 10,000,000,000,000 samples or more",
        allowed="1,000,000,000 samples over all clients",
    ),
    "nets without validation samples": Bad(
        {
            "methods": {"fedavg": None, "fedl2p": {"start": "fedavg", "learns": "lr"}},
            **homogeneous(val=0.0),
        },
        key="methods.fedl2p",
        value="learns by validation samples, but homogeneous(clients=3, val=0.0) has none",
        allowed="a partition with val > 0",
    ),
    "a server that lacks what its method trains on": Bad(
        {"methods": {"fediot": None}},
        key="methods.fediot",
        value="trains on the server, but dirichlet(",
        allowed="a partition with server > 0",
    ),
    "augmentation of what is no image": Bad(
        training(augmentation="crop-flip"),
        key="training.augmentation",
        value="is crop-flip, but synthetic(alpha=1.0, clients=4, samples=40) has no images",
        allowed="none",
    ),
    "published test samples and no others": Bad(
        {"datasets": ["cifar10-c"], "models": ["cnn"], **homogeneous(test="published")},
        key="partitions.0.homogeneous.test",
        value="is published, as are all samples of cifar10-c: none is left to train on",
        allowed="a number, or another data set",
    ),
    "model that no memory holds": Bad(
        {"models": [{"mlp": {"hidden": [2**31 - 1, 2**31 - 1]}}]},
        key="models.0.mlp",
        value="takes more memory than this machine gives",
        allowed="a smaller model",
    ),
}


def message(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr of a command that fails."""
    assert main.main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


def states(text: str, bad: Bad) -> None:
    place, _, rest = text.partition(f": {bad.key}: " if bad.key else ": ")
    assert rest, f"the key {bad.key!r} is not named: {text}"
    assert place.endswith(f"config/{bad.file}")
    problem, allowed, *_ = [*re.split(r"\. (?:Allowed|Try): ", rest, maxsplit=1), ""]
    assert bad.value in problem
    assert bad.allowed in allowed


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_config(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = CASES[name]
    config = planning.write_config(tmp_path, bad.study, bad.settings)
    if bad.defaults is not None:
        (config / "methods" / "fedprox.yaml").write_text(yaml.safe_dump(bad.defaults))
    before = sorted(tmp_path.rglob("*"))
    states(message(capsys, "plan", "--config", str(config)), bad)
    assert sorted(tmp_path.rglob("*")) == before, "nothing was written"


def test_the_config_that_the_others_spoil_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = planning.write_config(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main.main(["plan", "--config", str(config)]) == 0
    assert "1 run in 1 bundle; 1 to train" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before, "planning starts nothing"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fed_avg.yaml", "unknown method 'fed_avg' (did you mean 'fedavg'?)"),
        ("fedavg.yml", "which is not read. Allowed: fedavg.yaml"),
    ],
)
def test_a_file_of_no_method(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    config = planning.write_config(tmp_path)
    for passed in ("README.md", ".gitkeep", "fedavg.yaml~"):
        (config / "methods" / passed).write_text("")
    assert main.main(["plan", "--config", str(config)]) == 0
    capsys.readouterr()
    (config / "methods" / name).write_text("lr: 0.1\n")
    text = message(capsys, "plan", "--config", str(config))
    assert f"config/methods/{name}: " in text and said in text


@pytest.mark.parametrize("name", ["../../evil", "a,b", "a.runs", "a\n", "-a", "a" * 101])
def test_a_name_that_no_study_can_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    config = planning.write_config(tmp_path, settings={"studies": [name]})
    for path in (config / "studies" / f"{name}.yaml", tmp_path / "evil.yaml"):
        path.write_bytes((config / "studies" / "tiny.yaml").read_bytes())
    asked = [["plan"]] + [["show", name, *planned] for planned in ([], ["--planned"])]
    for command in asked if not name.startswith("-") else asked[:1]:
        said = message(capsys, *command, "--config", str(config))
        assert repr(name) in said and "Allowed: " in said and "100" in said


def test_studies_are_asked_for_with_spaces_and_with_commas(tmp_path: Path) -> None:
    config = planning.write_config(tmp_path)
    for name in ("b-0.5", "c_1"):
        path = config / "studies" / f"{name}.yaml"
        path.write_bytes((config / "studies" / "tiny.yaml").read_bytes())
    for words in (
        ["tiny", "b-0.5", "c_1"],
        ["tiny b-0.5 c_1,"],
    ):
        assert [*plan.read_index(config, words).studies] == ["tiny", "b-0.5", "c_1"]


# A user's own partition


def brought(tmp_path: Path, table: pd.DataFrame | bytes | None) -> tuple[Path, Path]:
    """The config of a study with the table that a user brings, and where that is."""
    path = tmp_path / "mine.parquet"
    if isinstance(table, bytes):
        path.write_bytes(table)
    elif table is not None:
        table.to_parquet(path)
    study = {"partitions": [{"file": {"path": str(path)}}]}
    return planning.write_config(tmp_path, study), path


def table() -> pd.DataFrame:
    """160 samples over four clients; every fifth is tested on, every tenth after that is val."""
    split = ["test", "train", "train", "val", "train"] * 32
    return pd.DataFrame({"sample": range(160), "client": [0, 1, 2, 3] * 40, "split": split})


@pytest.mark.parametrize("content", [None, b"", b"PAR1"])
def test_a_partition_file_that_is_missing_or_cut_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    config, path = brought(tmp_path, content)
    bad = Bad(
        key="partitions.0.file.path",
        value=f"{path}: cannot be read as a partition table (",
        allowed="a complete Parquet file with the columns sample, client, split",
    )
    states(message(capsys, "plan", "--config", str(config)), bad)


def test_a_table_that_is_no_partition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What else makes a table none is told by `partition.validate`."""
    config, path = brought(tmp_path, table().query("client != 1"))
    text = message(capsys, "plan", "--write", "--config", str(config))
    assert f"{path}: client 1 has no samples" in text
    assert ". Allowed: " in text


def test_a_table_that_is_a_partition_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, _ = brought(tmp_path, table())
    assert main.main(["plan", "--write", "--config", str(config)]) == 0
    [planned] = (tmp_path / "results" / "plan" / "partitions").glob("*.json")
    assert main.main(["partition", planned.stem, "--config", str(config)]) == 0
    [made] = (tmp_path / "results" / "partitions").glob("*/partition.parquet")
    assert len(pd.read_parquet(made)) == 160


def test_a_partition_that_was_not_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = planning.write_config(tmp_path)
    text = message(capsys, "partition", "mine", "--config", str(config))
    assert re.search(r"plan/partitions/mine\.json: does not exist.*plan STUDY --write", text)


def test_a_name_of_the_plan_stands_for_its_only_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partitions = [{"dirichlet": {"clients": 4, "alpha": alpha}} for alpha in (0.5, 1.0)]
    config = planning.write_config(
        tmp_path, {"partitions": [*partitions, {"homogeneous": {"clients": 4}}]}
    )
    assert main.main(["plan", "--write", "--config", str(config)]) == 0
    ids = [path.stem for path in plan_files.all_files(tmp_path / "results", "partitions")]
    assert main.main(["partition", "homogeneous", "--config", str(config)]) == 0
    [made] = (tmp_path / "results" / "partitions").glob("homogeneous-*/partition.parquet")
    assert made.parent.name in ids
    capsys.readouterr()
    text = message(capsys, "partition", "dirichlet", "--config", str(config))
    drawn = ", ".join(id for id in ids if id.startswith("dirichlet-"))
    assert text.count("dirichlet-") == 2
    problem = "dirichlet: is the name of 2 planned partitions, so that it needs an id"
    assert f"{problem}. Allowed: {drawn}" in text
    text = message(capsys, "download", "vowel", "--config", str(config))
    [dataset] = plan_files.all_files(tmp_path / "results", "datasets")
    assert f"Allowed: {dataset.stem}. Try: `fedloom plan STUDY --write`" in text


def test_rows_in_another_order_are_the_same_partition_and_the_same_runs(tmp_path: Path) -> None:
    config, path = brought(tmp_path, table())
    first = plan.make(config)
    table().sample(frac=1.0, random_state=0).to_parquet(path)
    second = plan.make(config)
    assert first.bundles == second.bundles
