"""A study of clients with photographs and clients with captions, from archives to its report."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import planning
import pytest
from sources import cub200

from fl.base.errors import ConfigError, DataError
from fl.cli import main as cli
from fl.data import partition_table
from fl.data.partition_table import MODALITY
from fl.data.schemes.homogeneous import homogeneous
from fl.plan import plan

MODEL = {"image-text": {"tokens": 9, "width": 4, "channels": [2], "filters": 2, "features": 4}}
DATA = f"cub200({', '.join(f'{key}={value}' for key, value in cub200.PARAMS.items())})"
PUBLISHED = Path(__file__).parents[2] / "config" / "published" / "fedsac.csv"
STUDY: dict[str, Any] = {
    "datasets": [{"cub200": cub200.PARAMS}],
    "partitions": [{"homogeneous": {"clients": 4, "modalities": [2, 2], "val": 0.0}}],
    "models": [MODEL],
    "training": {"rounds": 2, "batch_size": 2, "optimizer": "adamw", "lr": 0.001},
    "methods": {"fedavg": None, "ditto": None},
}


def cells(modality: str, **rows: str) -> dict[str, Any]:
    """Published cells of one modality's clients."""
    column = "Homo textual" if modality == "text" else "Homo visual"
    which = {"source": "fedsac.csv", "table": "2", "modality": modality}
    return {**which, "rows": rows, "columns": {DATA: column}}


def config(root: Path, **study: Any) -> Path:
    files = root / "files"
    files.mkdir()
    cub200.write(files)
    folder = planning.write_config(root, {**STUDY, **study}, {"sources": {"cub200": str(files)}})
    (folder / "published").mkdir()
    shutil.copy(PUBLISHED, folder / "published")
    return folder


def test_photographs_and_captions_become_a_report(tmp_path: Path) -> None:
    own = {"image-text": {**MODEL["image-text"], "classifier": "own"}}
    methods = {"fedsac": {"k": 1}, "fedavg": None}
    published = [cells("image", fedsac="FedSaC"), cells("text", fedsac="FedSaC")]
    changed = {"methods": methods, "published": published, "test": "reweighted"}
    folder = config(tmp_path, models=[MODEL, own], seeds=[0, 1], **changed)
    rows = trained(tmp_path, folder)
    assert cli.main(["report", "tiny", "--config", str(folder)]) == 0
    page = (tmp_path / "results" / "report" / "tiny.md").read_text()
    beside = [line.split("|") for line in page.splitlines() if "fedsac, Table 2" in line]
    assert len(beside) == 4
    last = rows[(rows["split"] == "test") & (rows["metric"] == "accuracy") & (rows["round"] == 2)]
    last = last[(last["method"] == "fedsac")]
    for line in beside:
        kind = "image" if "visual" in line[2] else "text"
        assert f"{kind} clients" in line[3]
        same = last["client"].isin([0, 1] if kind == "image" else [2, 3])
        settings = last[same].groupby(["model", "seed"])["value"].mean().groupby("model").mean()
        assert any(f"{100 * value:.1f}" in line[4] for value in settings), (line, settings)
    assert set(rows.loc[rows["split"] == "test", "client"]) == {0, 1, 2, 3}
    assert rows["value"].notna().all()
    [path] = (tmp_path / "results" / "partitions").glob("*/partition.parquet")
    table = partition_table.read(path)
    assert table.groupby("client")[MODALITY].first().tolist() == [0, 0, 1, 1]
    costs = pd.read_parquet(tmp_path / "results" / "tables" / "tiny.runs.parquet")
    assert (costs["bytes_down"] < costs["state_server"]).all()


def homogeneously(**keys: Any) -> dict[str, Any]:
    return {"partitions": [{"homogeneous": {"clients": 4, **keys}}]}


WRONG = {
    "a modality without clients": (
        homogeneously(modalities=[4, 0]),
        r"partitions\.0\.homogeneous\.modalities: is \[4, 0\]: no client has text. "
        "Allowed: 1 or more for image, text each",
    ),
    "text clients with an image model": (
        {"models": ["cnn"]},
        r"models\.0\.cnn: cnn takes one kind of input, but clients 2 to 3 of homogeneous\(.*\) "
        "have text, where others have image. Allowed: image-text",
    ),
    "a published modality that there is not": (
        {"published": [cells("sound", fedavg="FedAvg")]},
        r"published\.0\.modality: unknown modality 'sound'. Allowed: image, text",
    ),
    "few samples where clients differ": (
        {"methods": {"fedavg": {"train_on": 1}}},
        r"methods\.fedavg\.train_on: is 1, but clients differ in modality. Try: a partition",
    ),
    "a set of one kind": (
        {"datasets": ["digits"], "models": ["cnn"]},
        r"modalities: is \[2, 2\], but digits has one kind of input. Allowed: none",
    ),
    "a server that mixes models": (
        {"methods": {"pfedgraph": None}},
        r"methods\.pfedgraph: with image-text\(.*\): the server does more than average what "
        r"clients send, but image and text share the weights classifier\.bias, classifier\.weight",
    ),
    "an analysis of one network": (
        {"analyses": ["features"]},
        r"analyses\.0\.features: features needs clients of one modality, but they have several",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_go_with_two_modalities_is_refused(name: str, tmp_path: Path) -> None:
    study, message = WRONG[name]
    with pytest.raises(ConfigError, match=message):
        plan.make(config(tmp_path, **study))


def test_some_clients_may_have_one_kind_and_others_both(tmp_path: Path) -> None:
    both = "image and text"
    study = {
        **homogeneously(modalities=[2, 1, 1], val=0.0),
        "published": [cells(both, fedavg="FedAvg")],
    }
    folder = config(tmp_path, **study, methods={"fedavg": None, "fedsac": {"k": 1}})
    rows = trained(tmp_path, folder)
    assert set(rows.loc[rows["split"] == "test", "client"]) == {0, 1, 2, 3}
    assert rows["value"].notna().all()
    assert cli.main(["report", "tiny", "--config", str(folder)]) == 0
    page = (tmp_path / "results" / "report" / "tiny.md").read_text()
    last = rows[(rows["split"] == "test") & (rows["metric"] == "accuracy") & (rows["round"] == 2)]
    [value] = last.loc[(last["method"] == "fedavg") & (last["client"] == 3), "value"]
    [beside] = [line for line in page.splitlines() if "fedsac, Table 2" in line]
    assert f"{both} clients" in beside and f"{100 * value:.1f}" in beside


def trained(root: Path, folder: Path) -> pd.DataFrame:
    """The table of a study's results."""
    assert cli.main(["plan", "--write", "--config", str(folder)]) == 0
    bundles = sorted((root / "results" / "plan" / "bundles").glob("*.json"))
    assert cli.main(["train", *map(str, bundles), "--config", str(folder)]) == 0
    assert cli.main(["tables", "tiny", "--config", str(folder)]) == 0
    return pd.read_parquet(root / "results" / "tables" / "tiny.parquet")


def test_the_server_classifies_what_clients_encode(tmp_path: Path) -> None:
    own = {"image-text": {**MODEL["image-text"], "classifier": "own"}}
    held = {"clients": 4, "modalities": [2, 2], "val": 0.0, "server": 0.2}
    study = {"models": [own], "partitions": [{"homogeneous": held}], "methods": {"fediot": None}}
    rows = trained(tmp_path, config(tmp_path, **study))
    assert set(rows.loc[rows["split"] == "test", "client"]) == {0, 1, 2, 3}
    assert rows["value"].notna().all()
    [path] = (tmp_path / "results" / "partitions").glob("*/partition.parquet")
    assert (partition_table.read(path)["split"] == "server").any()


def test_classifiers_of_their_own_let_any_method_in(tmp_path: Path) -> None:
    own = {"image-text": {**MODEL["image-text"], "classifier": "own"}}
    methods = {"pfedgraph": None, "feddyn": None}
    found = plan.make(config(tmp_path, models=[own], methods=methods))
    assert len(found.bundles) == 2


def test_the_modality_of_a_client_is_part_of_a_table(tmp_path: Path) -> None:
    labels = np.zeros(20, int)
    plain = homogeneous(labels, clients=4)
    both, other = (homogeneous(labels, clients=4, modalities=m) for m in ((2, 2), (1, 3)))
    assert len({partition_table.content_hash(table) for table in (plain, both, other)}) == 3
    partition_table.write(both, tmp_path / "table.parquet")
    assert partition_table.read(tmp_path / "table.parquet")[MODALITY].equals(both[MODALITY])
    partition_table.validate(both, labels, source="t")
    with pytest.raises(DataError, match=r"modalities is \[3, 2\]. Allowed: .*4 together"):
        homogeneous(labels, clients=4, modalities=(3, 2))
    with pytest.raises(DataError, match="t: modality 0 has no clients"):
        partition_table.validate(both.assign(modality=both[MODALITY] + 1), labels, source="t")
    with pytest.raises(DataError, match=r"t: client 0 differs in 'modality' from row to row"):
        partition_table.validate(both.assign(modality=np.arange(20) % 2), labels, source="t")
