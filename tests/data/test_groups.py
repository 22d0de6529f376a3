"""Groups of samples, such as those of one patient: no split and no draw of clients divides them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import partition
import pytest
from dealing import DOMAINS, GROUPS, KEYS, LABELS, make
from PIL import Image

import fl
from fl.base import registry
from fl.base.errors import DataError, FedloomError, Location
from fl.data import groups, preparation
from fl.data.partitioning import apply_scheme
from fl.data.prepared import Prepared
from fl.store.store import Store

WHERE = Location("the test")
SIZES = np.arange(1, 7)
"""Numbers of samples of a group, in turn."""
ARRAY_BY_SCHEME = {"domain": DOMAINS, "domain_dirichlet": DOMAINS, "natural": GROUPS}


def members(inside: np.ndarray) -> np.ndarray:
    """The group of each sample: groups of 1 to 6 samples, in no order, with one value each."""
    group = np.zeros(len(inside), np.int64)
    for value in np.unique(inside):
        samples = np.random.default_rng(3).permutation(np.flatnonzero(inside == value))
        sizes = np.resize(SIZES, len(samples))
        group[samples] = group.max() + 1 + np.repeat(np.arange(len(sizes)), sizes)[: len(samples)]
    return group


def is_whole(table: pd.DataFrame, group: np.ndarray, columns: list[str]) -> bool:
    """Whether no group has samples with different values in columns of a partition."""
    by_group = table.groupby(group[table["sample"]])[columns].nunique()
    return bool((by_group == 1).all().all())


@pytest.mark.parametrize("scheme", KEYS)
def test_every_scheme_keeps_groups_whole(scheme: str) -> None:
    group = members(ARRAY_BY_SCHEME.get(scheme, np.zeros_like(LABELS)))
    table = make(scheme, group=group)
    partition.validate(table, LABELS, source=scheme)
    assert set(table["split"]) == {"train", "val", "test"}
    assert table.equals(make(scheme, group=group))
    assert any("groups are dealt whole" in note for note in table.attrs["notes"])
    assert not is_whole(make(scheme), group, ["split"])
    assert is_whole(table, group, ["client", "split"])


def test_groups_of_one_sample_are_dealt_as_samples_are() -> None:
    table = make("dirichlet", group=np.arange(len(LABELS)), unseen=2, server=0.1)
    plain = make("dirichlet", unseen=2, server=0.1)
    assert table.equals(plain)
    assert set(table["split"]) == {"train", "val", "test", "server"}


def test_a_group_has_its_most_frequent_class_and_the_smallest_of_several() -> None:
    labels, group = np.array([4, 1, 1, 2, 0, 2, 0]), np.array([0, 0, 0, 1, 1, 2, 1])
    assert groups.group_labels(labels, group).tolist() == [1, 0, 2]


def test_too_few_groups_are_said_to_be_few() -> None:
    with pytest.raises(DataError, match="where each of 12 groups counts as one sample"):
        partition.homogeneous(np.arange(60) % 2, group=np.arange(60) // 5, clients=5)


def rows(samples: int = 96) -> pd.DataFrame:
    """Rows of patients, of which each has one hospital and one label."""
    draw = np.random.default_rng(5)
    table = pd.DataFrame(draw.normal(size=(samples, 3)), columns=["a", "b", "c"])
    patient = draw.permutation(np.arange(samples) // 4)
    table["patient"] = [f"P{number:02}" for number in patient]
    table["hospital"], table["label"] = patient % 2, patient // 2 % 2
    return table


def prepared(name: str, folder: Path, **keys: Any) -> Prepared:
    entry = registry.find("data set", name, WHERE)
    made = entry.instantiate(entry.parse(keys, WHERE))
    return preparation.prepare_folder(made, name, folder / "raw", folder / "prepared")


def write_leaf(folder: Path, table: pd.DataFrame) -> dict[str, Any]:
    by_hospital = {str(name): rows_ for name, rows_ in table.groupby("hospital")}
    data = {
        name: {
            "x": rows_[["a", "b", "c"]].to_numpy().tolist(),
            "y": rows_["label"].tolist(),
            "patient": rows_["patient"].tolist(),
        }
        for name, rows_ in by_hospital.items()
    }
    counts = [len(rows_) for rows_ in by_hospital.values()]
    content = {"users": [*data], "num_samples": counts, "user_data": data}
    (folder / "all.json").write_text(json.dumps(content))
    return {"path": str(folder / "all.json"), "group": "patient"}


def write_images(folder: Path, table: pd.DataFrame) -> dict[str, Any]:
    for row, (patient, label) in enumerate(zip(table["patient"], table["label"], strict=True)):
        path = folder / "scans" / f"class{label}" / f"{patient}_{row:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4), row, np.uint8)).save(path)
    return {"path": str(folder / "scans"), "group": "(P[0-9]+)_"}


def write_table(folder: Path, table: pd.DataFrame, suffix: str = "csv") -> dict[str, Any]:
    path = folder / f"rows.{suffix}"
    table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    return {"path": str(path), "label": "label", "client": "hospital", "group": "patient"}


def write_image_table(folder: Path, table: pd.DataFrame) -> dict[str, Any]:
    write_images(folder, table)
    paths = sorted((folder / "scans").glob("*/*.png"))
    listed = pd.DataFrame({"path": map(str, paths), "label": [p.parent.name for p in paths]})
    listed["patient"] = [path.name[:3] for path in paths]
    listed.to_csv(folder / "listed.csv", index=False)
    return {"path": str(folder / "listed.csv"), "group": "patient"}


READERS = {
    "table": write_table,
    "table in Parquet": lambda folder, table: write_table(folder, table, "parquet"),
    "leaf": write_leaf,
    "images": write_images,
    "images of a table": write_image_table,
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_has_groups(reader: str, tmp_path: Path) -> None:
    table = rows()
    keys = READERS[reader](tmp_path, table)
    data = prepared(reader.split()[0], tmp_path, **keys)
    assert data.group is not None
    assert data.groups == tuple(sorted(set(table["patient"])))
    found = sorted(np.array(data.groups)[data.group])
    assert found == sorted(table["patient"])
    scheme = {"homogeneous": {"clients": 3, "seed": 0}}
    [(name, values)] = scheme.items()
    dealt = apply_scheme(getattr(partition, name), values, data, name)
    assert is_whole(dealt, data.group, ["client", "split"])
    assert dealt["group"].tolist() == [data.groups[k] for k in data.group[dealt["sample"]]]
    without = {key: value for key, value in keys.items() if key != "group"}
    if reader != "leaf" and "table" not in reader:
        assert prepared(reader.split()[0], tmp_path / "plain", **without).group is None


def test_groups_that_cannot_be_whole_are_refused_by_name(tmp_path: Path) -> None:
    table = rows()
    table.loc[table.index[table["patient"] == "P07"][0], "hospital"] += 1
    data = prepared("table", tmp_path, **write_table(tmp_path, table))
    with pytest.raises(DataError, match="natural: group 'P07' has samples of several clients"):
        apply_scheme(partition.natural, {"seed": 0}, data, "natural")
    own = apply_scheme(partition.homogeneous, {"clients": 2, "seed": 0}, data, "homogeneous")
    row = own.index[own["group"] == "P09"][0]
    own.loc[row, "split"] = "test" if own.loc[row, "split"] == "train" else "train"
    partition.write(own, tmp_path / "own.parquet")
    path = str(tmp_path / "own.parquet")
    with pytest.raises(DataError, match=r"own.parquet: group 'P09' has samples of several splits"):
        apply_scheme(partition.file, {"path": path}, data, "file")


def test_published_splits_that_divide_a_group_are_refused(tmp_path: Path) -> None:
    table = rows()
    table["split"] = np.where(table["patient"] < "P06", "test", "train")
    keys = {**write_table(tmp_path, table), "split": "split"}
    values = {"clients": 2, "seed": 0, "test": "published"}
    data = prepared("table", tmp_path, **keys)
    dealt = apply_scheme(partition.homogeneous, values, data, "homogeneous")
    assert set(dealt.loc[dealt["split"] == "test", "group"]) == {f"P0{k}" for k in range(6)}
    assert data.group is not None
    assert is_whole(dealt, data.group, ["client", "split"])
    table.loc[table.index[table["patient"] == "P03"][0], "split"] = "train"
    write_table(tmp_path, table)
    data = prepared("table", tmp_path / "second", **keys)
    with pytest.raises(DataError, match="group 'P03' has samples of several published splits"):
        apply_scheme(partition.homogeneous, values, data, "homogeneous")


def test_wrong_groups_are_refused(tmp_path: Path) -> None:
    table = rows()
    images = write_images(tmp_path, table)
    for pattern, message in (
        ("Q([0-9]+)", r"\.png: the path has no part that fits group 'Q\(\[0-9\]\+\)'"),
        ("P(", r"group 'P\(': is no regular expression"),
    ):
        with pytest.raises(DataError, match=message):
            prepared("images", tmp_path, **{**images, "group": pattern})
    with pytest.raises(DataError, match="group is 'ward', but user_data has no such list"):
        prepared("leaf", tmp_path, **{**write_leaf(tmp_path, table), "group": "ward"})
    with pytest.raises(DataError, match=r"group is 'patent'.*did you mean 'patient'"):
        prepared("table", tmp_path, **{**write_table(tmp_path, table), "group": "patent"})
    table.loc[3, "patient"] = None
    with pytest.raises(DataError, match="'patient', row 4: is empty"):
        prepared("table", tmp_path, **write_table(tmp_path, table))


def test_predictions_have_the_group_of_each_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = rows()
    x, patient = table[["a", "b", "c"]].to_numpy(), table["patient"]
    own = fl.arrays(x, table["label"], group=patient)
    call: dict[str, Any] = {
        **{"dataset": own, "partition": {"homogeneous": {"clients": 3}}, "model": "logistic"},
        **{"methods": ["fedavg"], "rounds": 1, "progress": False, "keep_predictions": True},
    }
    result = fl.run(**call)
    found = result.predictions("fedavg")
    assert found["group"].tolist() == patient.iloc[found["sample"]].tolist()
    trained = result.predictions("fedavg", split="train")
    assert not {*found["group"]} & {*trained["group"]}
    by_group = found.assign(correct=found["label"] == found["predicted"]).groupby("group")
    assert by_group["correct"].mean().between(0, 1).all()
    [run] = result.runs()["run"]
    stored = Store(Path("results/runs")).predictions(run)
    assert stored["group"].tolist() == patient.iloc[stored["sample"]].tolist()
    plain = fl.run(**{**call, "dataset": fl.arrays(x, table["label"])})
    assert "group" not in plain.predictions("fedavg")
    with pytest.raises(FedloomError, match="group has 'nan', as for a missing value"):
        fl.arrays(x, table["label"], group=np.where(patient == "P03", "nan", patient).astype(str))
