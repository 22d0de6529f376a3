"""Clients of PFLlib and FL-bench have the same samples here: files that these programs wrote.

The files in `other_programs` hold drawn numbers. In `pfllib` they are from `separate_data` (4
clients, 3 classes, partition "dir", not balanced), `split_data` and `save_file` of PFLlib's
`dataset/utils/dataset_utils.py`, commit d832e76f, on 120 drawn images of 4 x 4 pixels. In `flbench`
they are from FL-bench's `generate_data.py -d mnist -c 2 -cn 4 -vr 0.2`, commit 06e658bc, where
`MNIST` had the labels `FLBENCH_LABELS`.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import partition
import pytest

from fl.base import registry
from fl.base.errors import DataError, Location
from fl.base.hashes import content_hash
from fl.data import preparation
from fl.data.prepared import Prepared

FILES = Path(__file__).parent / "other_programs"
FLBENCH_LABELS = np.random.default_rng(7).integers(0, 3, 240)
WHERE = Location("the test")


def arrays(path: Path, **keys: Any) -> Any:
    entry = registry.find("data set", "arrays", WHERE)
    return entry.instantiate(entry.parse({"path": str(path), **keys}, WHERE))


def prepared(made: Any, folder: Path) -> Prepared:
    return preparation.prepare_folder(made, "arrays", folder / "raw", folder / "prepared")


def as_pfllib_reads(split: str, client: int) -> dict[str, Any]:
    """What PFLlib's `read_data` returns."""
    with np.load(FILES / "pfllib" / split / f"{client}.npz", allow_pickle=True) as file:
        data: dict[str, Any] = file["data"].tolist()
    return data


def write_client(folder: Path, split: str, client: int, data: Any) -> None:
    """A file as PFLlib's `save_file` writes it."""
    (folder / split).mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / split / f"{client}.npz", data=data)


def rows(x: np.ndarray, y: np.ndarray) -> Counter[tuple[bytes, int]]:
    return Counter((image.tobytes(), int(label)) for image, label in zip(x, y, strict=True))


@pytest.mark.parametrize("val", [0, 0.25])
def test_clients_of_pfllib_have_their_samples(tmp_path: Path, val: float) -> None:
    made = arrays(FILES / "pfllib", standardise=False)
    assert (made.size, made.shape, made.classes, made.natural_clients) == (120, (1, 4, 4), 3, 4)
    data = prepared(made, tmp_path)
    assert data.normalisation == {"scale": 1.0, "mean": 0.0, "sd": 1.0}
    table = partition.natural(data.y, data.client, data.split, test="published", val=val)
    for client in range(4):
        own = table[table["client"] == client].groupby("split")["sample"].agg(list)
        train, test = (as_pfllib_reads(split, client) for split in ("train", "test"))
        assert rows(data.x[own["test"]], data.y[own["test"]]) == rows(test["x"], test["y"])
        kept = own["train"] + (own["val"] if val else [])
        assert rows(data.x[kept], data.y[kept]) == rows(train["x"], train["y"])
        assert len(own["train"]) == pytest.approx((1 - val) * len(train["y"]), abs=2)
    assert len(table) == 120


def test_a_run_depends_on_the_files_of_clients_alone(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(FILES / "pfllib", folder)
    (folder / "rawdata").mkdir()
    (folder / "rawdata" / "images.npz").write_bytes(b"not read")
    assert content_hash(arrays(folder).files) == content_hash(arrays(FILES / "pfllib").files)
    assert len(arrays(folder).files) == 8
    old = arrays(folder).arrays["x"]
    write_client(folder, "test", 0, {"x": old[:4] / 2, "y": np.array([0, 1, 2, 0])})
    assert content_hash(arrays(folder).files) != content_hash(arrays(FILES / "pfllib").files)
    assert arrays(folder).size != 120, "an edit is seen"


def test_texts_of_pfllib_are_their_tokens(tmp_path: Path) -> None:
    """PFLlib's `generate_AGNews.py` writes pairs of tokens and their number, without a config."""
    tokens = np.random.default_rng(2).integers(0, 50, (2, 2, 10, 6))
    for split, of_split in zip(("train", "test"), tokens.tolist(), strict=True):
        for client, texts in enumerate(of_split):
            x = np.array([(text, 6) for text in texts], dtype=object)
            write_client(tmp_path / "news", split, client, {"x": x, "y": np.arange(10) % 3})
    made = arrays(tmp_path / "news")
    assert (made.shape, made.tokens, made.natural_clients) == ((6,), tokens.max() + 1, 2)
    assert np.array_equal(prepared(made, tmp_path).x, tokens.reshape(40, 6))


X = np.zeros((5, 3), np.float32)
Y = np.arange(5) % 2


class Command:
    """A pickle that would make a folder where it is loaded."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.mkdir, (Path("hacked"),)


def replaced(data: Any) -> Callable[[Path], None]:
    return lambda folder: write_client(folder, "train", 1, data)


def with_config(text: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / "config.json").write_text(text), None][1]


WRONG_FOLDERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder of PFLlib": (
        lambda folder: shutil.rmtree(folder / "test"),
        r"mine: has no folders train and test\. Allowed: .*npz",
    ),
    "a client without tests": (
        lambda folder: (folder / "test" / "1.npz").unlink(),
        r"test/1\.npz: does not exist\. Allowed: .* 2 clients.* Try: ",
    ),
    "a client of other settings": (
        with_config('{"num_clients": 1}'),
        r"test/1\.npz: is of no client\. Allowed: .*Try: delete it",
    ),
    "a missing client": (with_config('{"num_clients": 3}'), r"train/2\.npz: does not exist"),
    "no number": (with_config("{}"), r"config\.json: num_clients: is None\. Allowed: "),
    "no JSON": (with_config("{"), r"config\.json: is no JSON"),
    "lengths": (replaced({"x": X, "y": Y[:4]}), r"train/1\.npz: y: is \[4\]\. Allowed: .* 5 "),
    "shapes": (
        replaced({"x": X[:, :2], "y": Y}),
        r"train/1\.npz: x: is float32 \[5, 2\]\. Allowed: float32 \[samples, 3\]",
    ),
    "types": (replaced({"x": X.astype(int), "y": Y}), r"train/1\.npz: x: is int64 \[5, 3\]"),
    "no labels": (replaced({"x": X}), r"train/1\.npz: has no dictionary data of x and y \('y'\)"),
    "texts of several lengths": (
        replaced({"x": np.array([([1], 1), ([1, 2], 2)], dtype=object), "y": Y[:2]}),
        r"train/1\.npz: has no dictionary data of x and y .*Try: ",
    ),
    "plain arrays": (replaced(X), r"train/1\.npz.*: is no complete pickle"),
    "no archive": (
        lambda folder: (folder / "train" / "1.npz").write_bytes(b"PK\x03\x04"),
        r"train/1\.npz: ",
    ),
    "labels": (replaced({"x": X, "y": Y / 4}), r"mine: y is float64\. Allowed: whole numbers"),
    "foreign objects": (
        replaced({"x": X, "y": Decimal(1)}),
        r"train/1\.npz.*: asks for decimal\.Decimal; no code of it was run\. Allowed: ",
    ),
    "commands": (
        replaced({"x": Command(), "y": Y}),
        r"train/1\.npz.*: asks for pathlib\.Path\.mkdir; no code of it was run",
    ),
}


@pytest.mark.parametrize("fault", WRONG_FOLDERS)
def test_what_is_not_as_pfllib_writes_it_is_refused_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for split in ("train", "test"):
        for client in range(2):
            write_client(tmp_path / "mine", split, client, {"x": X + client, "y": Y})
    assert arrays(tmp_path / "mine").size == 20
    spoil, message = WRONG_FOLDERS[fault]
    spoil(tmp_path / "mine")
    with pytest.raises(DataError, match=message):
        _ = arrays(tmp_path / "mine").shape
    assert not Path("hacked").exists()


def test_clients_of_flbench_have_their_samples() -> None:
    path = FILES / "flbench" / "partition.pkl"
    table = partition.file(FLBENCH_LABELS, path=str(path))
    statistics = json.loads((path.parent / "all_stats.json").read_text())
    for client, theirs in enumerate(pickle.loads(path.read_bytes())["data_indices"]):
        own = table[table["client"] == client]
        samples_by_split = dict(own.groupby("split")["sample"].agg(list))
        assert samples_by_split == {split: sorted(part.tolist()) for split, part in theirs.items()}
        counts = Counter(FLBENCH_LABELS[own["sample"]].tolist())
        assert {str(label): n for label, n in counts.items()} == statistics[str(client)]["y"]
    assert set(table["split"]) == {"train", "val", "test"}


GOOD = {"train": np.arange(4), "val": [], "test": [4, 5]}
WRONG_PARTITIONS: dict[str, tuple[Any, str]] = {
    "no partition": ([1], r"p\.pkl: data_indices: is no list of clients\. Allowed: .*FL-bench"),
    "no clients": ({"data_indices": []}, r"p\.pkl: data_indices: is no list of clients"),
    "not split": ({"data_indices": [GOOD, [6, 7]]}, r"data_indices\.1: is \[6, 7\]\. Allowed: .*"),
    "another split": (
        {"data_indices": [{**GOOD, "dev": [6]}]},
        r"data_indices\.0: is .* Allowed: ",
    ),
    "split by users": (
        {"data_indices": [GOOD, {"train": [6], "test": []}]},
        r"data_indices\.1\.test: is empty\. Allowed: .* Try: .*--split sample",
    ),
    "no rows": (
        {"data_indices": [{**GOOD, "train": np.zeros(2)}]},
        r"data_indices\.0\.train: is float64 \[2\]\. Allowed: a list of whole numbers",
    ),
    "ragged": ({"data_indices": [{**GOOD, "val": [[6], [7, 8]]}]}, r"data_indices\.0\.val: "),
    "another data set": (
        {"data_indices": [{**GOOD, "val": [240]}]},
        r"p\.pkl: sample 240 .*is not in the data set\. Allowed: 0 to 239",
    ),
    "two owners": ({"data_indices": [GOOD, GOOD]}, r"p\.pkl: sample 0 .*occurs twice"),
    "commands": ({"data_indices": [Command()]}, r"p\.pkl: asks for pathlib\.Path\.mkdir; no code"),
}


@pytest.mark.parametrize("fault", WRONG_PARTITIONS)
def test_what_is_not_as_flbench_writes_it_is_refused_by_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.chdir(tmp_path)
    content, message = WRONG_PARTITIONS[fault]
    Path("p.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(DataError, match=message):
        partition.file(FLBENCH_LABELS, path="p.pkl")
    assert not Path("hacked").exists()
    with pytest.raises(DataError, match=r"absent\.pkl: does not exist"):
        partition.file(FLBENCH_LABELS, path="absent.pkl")
