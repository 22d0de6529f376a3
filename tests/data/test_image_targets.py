"""Images with a number to predict: from files to errors in the number's unit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import planning
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import fl
from fl.base.errors import DataError, FedloomError
from fl.cli import main
from fl.data import preparation
from fl.data.datasets.images import Images
from fl.data.prepared import Prepared

COUNT, SIDE = 96, 6
UNIT = 30.0
"""Targets are the mean brightness of an image, from 0 to 1, times this, plus 100."""


def pictures() -> list[Image.Image]:
    """Grey images of noise, each around a brightness of its own."""
    random = np.random.default_rng(0)
    brightness = random.uniform(40, 215, COUNT)[:, None, None]
    pixels = brightness + random.uniform(-40, 40, (COUNT, SIDE, SIDE))
    return [Image.fromarray(image) for image in pixels.astype(np.uint8)]


def targets() -> list[float]:
    return [100 + UNIT * float(np.asarray(image).mean()) / 255 for image in pictures()]


def write_files(folder: Path) -> Path:
    """A table of the paths of images, their targets, clients and splits."""
    for number, image in enumerate(pictures()):
        (folder / f"shard{number % 3}").mkdir(parents=True, exist_ok=True)
        image.save(folder / f"shard{number % 3}" / f"{number}.png")
    numbers = np.arange(COUNT)
    table = pd.DataFrame(
        {
            "path": [f"shard{number % 3}/{number}.png" for number in numbers],
            "age": targets(),
            "site": numbers % 4,
            "split": np.where(numbers % 6 == 5, "test", np.where(numbers % 6 == 4, "val", "train")),
        }
    )
    table.to_csv(folder / "ages.csv", index=False)
    return folder / "ages.csv"


def png(image: Image.Image) -> dict[str, Any]:
    stream = io.BytesIO()
    image.save(stream, "png")
    return {"bytes": stream.getvalue(), "path": None}


def write_parquet(folder: Path) -> None:
    """Two files with images and targets, which are the published split."""
    images, ages = [png(image) for image in pictures()], targets()
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in (("train", slice(0, 72)), ("test", slice(72, COUNT))):
        columns = {"picture": images[rows], "age": ages[rows]}
        pq.write_table(pa.table(columns), folder / f"{split}-00000-of-00001.parquet")


def prepared(images: Images, folder: Path) -> Prepared:
    return preparation.prepare_folder(images, "images", folder / "raw", folder / "made")


def test_a_table_of_targets_is_kept_to_the_digit(tmp_path: Path) -> None:
    path = write_files(tmp_path / "scans")
    images = Images(str(path), target="age", client="site", split="split")
    assert (images.task, images.classes, images.size) == ("regression", 1, COUNT)
    assert images.shape == (1, SIDE, SIDE)
    found = prepared(images, tmp_path)
    assert np.load(tmp_path / "made" / "target.npy").tolist() == targets()
    assert found.y.tolist() == [0] * COUNT
    assert found.client is not None and found.client.tolist() == [k % 4 for k in range(COUNT)]
    assert found.split is not None and found.split.tolist() == [0, 0, 0, 0, 2, 1] * (COUNT // 6)
    assert np.array_equal(found.x[7, 0], np.asarray(pictures()[7]))


def test_parquet_holds_images_beside_their_targets(tmp_path: Path) -> None:
    write_parquet(tmp_path / "hub")
    found = prepared(Images(str(tmp_path / "hub"), image="picture", target="age"), tmp_path)
    in_order_of_files = targets()[72:] + targets()[:72]
    assert np.load(tmp_path / "made" / "target.npy").tolist() == in_order_of_files
    assert found.split is not None and found.split.tolist() == [1] * 24 + [0] * 72
    assert np.array_equal(found.x[23, 0], np.asarray(pictures()[95]))


def test_a_network_learns_the_targets_and_the_report_has_their_unit(tmp_path: Path) -> None:
    """Brightness is linear in the pixels, so that most of the variance is explained."""
    path = write_files(tmp_path / "scans")
    config = planning.write_config(
        tmp_path,
        {
            "datasets": [{"images": {"path": str(path), "target": "age", "client": "site"}}],
            "partitions": ["natural"],
            "models": [{"mlp": {"hidden": [8]}}],
            "training": {"rounds": 15, "batch_size": 8, "lr": 0.02, "augmentation": "flip"},
            "methods": {"fedavg": None, "ditto": {"lam": 0.1}},
        },
    )
    assert main.main(["plan", "--write", "--config", str(config)]) == 0
    bundles = sorted((tmp_path / "results" / "plan" / "bundles").glob("*.json"))
    assert main.main(["train", *map(str, bundles), "--config", str(config)]) == 0
    assert main.main(["report", "tiny", "--config", str(config)]) == 0
    rows = pd.read_parquet(tmp_path / "results" / "tables" / "tiny.parquet")
    last = rows[(rows["split"] == "test") & (rows["round"] == 15)]
    assert (last.loc[last["metric"] == "r2", "value"] > 0.8).all()
    errors = last.loc[last["metric"] == "rmse", "value"]
    assert errors.between(0.05, 0.4 * np.std(targets())).all(), "in the target's unit"
    page = (tmp_path / "results" / "report" / "tiny.html").read_text()
    assert "Final test RMSE (unit of the target)" in page


def test_a_call_predicts_in_the_target_s_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_parquet(tmp_path / "hub")
    result = fl.run(
        dataset={"images": {"path": "hub", "image": "picture", "target": "age"}},
        partition={"homogeneous": {"clients": 3, "test": "published"}},
        model="cnn",
        methods=["fedavg"],
        rounds=3,
        batch_size=8,
        progress=False,
    )
    predictions = result.predictions("fedavg")
    assert len(predictions) == 24
    assert predictions["predicted"].between(90, 140).all()
    assert sorted(predictions["target"]) == pytest.approx(sorted(targets()[72:]), rel=1e-6)


WRONG = {
    "both": ({"label": "split"}, "label and target are set. Try: name the column of classes"),
    "no column": ({"target": "agee"}, r"target is 'agee', but there is .*\(did you mean 'age'\?\)"),
    "no number": ({"target": "split"}, "column 'split', row 1: 'train'"),
}


@pytest.mark.parametrize("keys, said", WRONG.values(), ids=WRONG)
def test_wrong_targets_are_refused(tmp_path: Path, keys: dict[str, str], said: str) -> None:
    path = write_files(tmp_path)
    with pytest.raises(DataError, match=said):
        _ = Images(str(path), **{"target": "age", **keys}).classes


def test_labels_that_are_numbers_to_predict_get_advice(tmp_path: Path) -> None:
    path = write_files(tmp_path / "scans")
    with pytest.raises(DataError, match="Try: `target: age` in place of `label`, if it is a"):
        _ = Images(str(path), label="age").classes
    write_parquet(tmp_path / "hub")
    with pytest.raises(
        DataError, match=r"1\d\d\.\d+ is no class.* Try: `target: age` in place of `label`"
    ):
        _ = Images(str(tmp_path / "hub"), image="picture", label="age").classes


def test_equal_targets_and_folders_are_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "hub")
    for path in (tmp_path / "hub").iterdir():
        table = pq.read_table(path)
        pq.write_table(table.set_column(1, "age", pa.array([3.0] * len(table))), path)
    with pytest.raises(DataError, match=r"target 'age' has one value only, 3\. Allowed: different"):
        _ = Images(str(tmp_path / "hub"), image="picture", target="age").classes
    write_files(tmp_path / "scans")
    (tmp_path / "scans" / "ages.csv").unlink()
    said = "is a folder, which has no column 'age'. Allowed: target with the path of a table"
    with pytest.raises(DataError, match=said):
        _ = Images(str(tmp_path / "scans"), target="age").classes


def test_images_under_another_name_are_found(tmp_path: Path) -> None:
    """The column of the Hub's images is rarely called ``path``."""
    write_parquet(tmp_path / "hub")
    said = "image is 'path', but there is no such column; images are in 'picture'. "
    said += "Try: `image: picture`"
    for path in (tmp_path / "hub", tmp_path / "hub" / "train-00000-of-00001.parquet"):
        with pytest.raises(FedloomError, match=said):
            _ = Images(str(path), target="age").classes
