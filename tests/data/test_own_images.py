"""Images of the user's own: folders of splits, shards, names of classes, endings, pages, EXIF."""

from __future__ import annotations

import io
import json
import logging
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from own_data import HUGGING_FACE, dataset, in_parquet, photo, photos, prepared
from PIL import Image, ImageOps

from fl.base import registry
from fl.base.errors import DataError, Location
from fl.data import partition_statistics, partitioning
from fl.data.readers.image_files import image_array

TWO_CLASSES = {"cat/1.png": 1, "cat/2.png": 2, "dog/1.png": 3, "dog/2.png": 4}


def layout(top: Path, *folders: str) -> Path:
    """Images of two classes in each of some folders."""
    for folder in folders:
        for name, shade in TWO_CLASSES.items():
            photo(top / folder / name, shade)
    return top


FOLDERS = {
    "other words": ("Training", "Testing"),
    "sets": ("training_set", "test_set"),
    "segments": ("seg_train", "seg_test"),
    "short": ("trn", "tst"),
    "folds": ("fold1", "fold2"),
    "hospitals": ("hospital1", "hospital2", "hospital3"),
    "deep": ("a/images", "b/images"),
    "within a split": ("train/site1", "train/site2", "test/site1"),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_folders_that_share_names_of_folders_are_no_classes(tmp_path: Path, kind: str) -> None:
    layout(tmp_path / "photos", *FOLDERS[kind])
    with pytest.raises(DataError, match=r"each of .* has a folder '.*' with images. Allowed: fold"):
        _ = dataset("images", tmp_path / "photos").shape


def test_a_folder_of_classes_beside_images_without_classes_is_no_class(tmp_path: Path) -> None:
    layout(tmp_path / "photos", "training_set")
    photo(tmp_path / "photos" / "test_set" / "1.png", 1)
    with pytest.raises(DataError, match=r"training_set contains images in folders only, others"):
        _ = dataset("images", tmp_path / "photos").shape


def test_classes_may_have_folders_of_their_own(tmp_path: Path) -> None:
    for name in (
        "cat/tabby/1.png",
        "cat/tabby/2.png",
        "dog/pug/1.png",
        "dog/2.png",
        "dog/new/3.png",
    ):
        photo(tmp_path / "photos" / name, 1)
    assert dataset("images", tmp_path / "photos").classes == 2
    for name in ("cat/new/3.png", "cat/9.png"):
        photo(tmp_path / "photos" / name, 1)
    assert dataset("images", tmp_path / "photos").size == 7


def test_folders_of_sites_that_may_be_taken_for_classes_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("h1/cat/1.png", "h1/cat/2.png", "h2/dog/1.png", "h2/dog/3.png"):
        photo(tmp_path / "photos" / name, 1)
    note = "the classes are the folders h1, h2; not the folders below them, cat (2), dog (2)"
    assert dataset("images", tmp_path / "photos").listed.notes == (note,)
    assert note in caplog.text
    photo(tmp_path / "photos" / "h2" / "2.png", 1)
    assert dataset("images", tmp_path / "photos").listed.notes == ()


@pytest.mark.parametrize("name", ["nan", "None", "?"])
def test_a_folder_for_a_missing_class_is_refused(tmp_path: Path, name: str) -> None:
    photos(tmp_path / "photos")
    photo(tmp_path / "photos" / name / "1.png", 1)
    with pytest.raises(DataError, match=r"means a missing class. Try: rename the folder"):
        _ = dataset("images", tmp_path / "photos").shape


def test_a_folder_or_a_number_in_parquet_for_a_missing_class_is_refused(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    photo(tmp_path / "photos" / "-1" / "1.png", 1)
    with pytest.raises(DataError, match=r"the label has -1, .*photos/-1/1\.png"):
        _ = dataset("images", tmp_path / "photos").shape
    in_parquet(tmp_path / "t.parquet", [0, 1, -1, 0, 1, 1])
    unnamed = pq.read_table(tmp_path / "t.parquet").replace_schema_metadata(None)
    pq.write_table(unnamed, tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"the label has -1, .*t\.parquet, column 'label', row 3"):
        _ = dataset("images", tmp_path / "t.parquet", image="image").shape


def test_classes_in_two_spellings_are_refused(tmp_path: Path) -> None:
    for folder in ("cat", "Cat", "dog"):
        photo(tmp_path / "photos" / folder / "1.png", 1)
        photo(tmp_path / "photos" / folder / "2.png", 1)
    with pytest.raises(DataError, match=r"one value in several spellings: 'Cat' and 'cat'"):
        _ = dataset("images", tmp_path / "photos").shape


# Files that are not read


@pytest.mark.parametrize("name", ["9.jfif", "9", "9.ppm", "9.scan"])
def test_an_image_with_another_ending_is_refused(tmp_path: Path, name: str) -> None:
    photos(tmp_path / "photos")
    kind = {"9.ppm": "ppm"}.get(name, "jpeg")
    Image.fromarray(np.zeros((6, 5), np.uint8)).save(tmp_path / "photos" / "dog" / name, kind)
    with pytest.raises(DataError, match=rf"dog/{name}: the image is not read. Allowed: images, "):
        _ = dataset("images", tmp_path / "photos").shape


@pytest.mark.parametrize("suffix", [".heic", ".AVIF"])
def test_an_image_that_cannot_be_read_is_known_by_its_ending(tmp_path: Path, suffix: str) -> None:
    photos(tmp_path / "photos")
    (tmp_path / "photos" / "dog" / f"9{suffix}").write_bytes(b"\0\0\0\x18ftypheic")
    with pytest.raises(DataError, match=rf"dog/9{suffix}: the image is not read. .*convert it"):
        _ = dataset("images", tmp_path / "photos").shape


def test_other_files_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    photos(tmp_path / "photos")
    for name in ("a.txt", "b.txt", "LICENCE"):
        (tmp_path / "photos" / "cat" / name).write_text("none")
    with caplog.at_level(logging.WARNING):
        found = dataset("images", tmp_path / "photos")
        _ = found.shape
    note = "files of other kinds are not read: 1 without ending, 2 .txt"
    assert f"photos: {note}" in caplog.text
    assert found.listed.notes == (note,)


# Files of Parquet


def hub(folder: Path, *names: str) -> Path:
    """Files of four images with these names."""
    for name in names:
        in_parquet(folder / name, [0, 1, 1, 0])
    return folder


def images(path: Path):
    return dataset("images", path, image="image")


@pytest.mark.parametrize("above", ["data", "data/plain_text"])
@pytest.mark.parametrize("ending", ["", "-00000-of-00001", "-00000-of-00001-0123456789abcdef"])
def test_files_of_the_hub_have_their_splits_below_other_folders(
    tmp_path: Path, above: str, ending: str
) -> None:
    names = [f"{above}/{split}{ending}.parquet" for split in ("train", "test")]
    found = prepared(images(hub(tmp_path / "hub", *names)), tmp_path)
    assert found.split is not None
    assert found.split.tolist() == [1] * 4 + [0] * 4


@pytest.mark.parametrize(
    "names",
    [
        ("training.parquet", "testing.parquet"),
        ("a/data.parquet", "b/data.parquet"),
        ("cola/train.parquet", "cola/test.parquet", "sst2/train.parquet", "sst2/test.parquet"),
    ],
)
def test_files_of_several_tables_are_not_poured_together(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    with pytest.raises(DataError, match=r"hub: contains .* beside .*names that differ in numbers"):
        _ = images(hub(tmp_path / "hub", *names)).shape


def test_a_path_with_two_splits_is_refused(tmp_path: Path) -> None:
    hub(tmp_path / "hub", "train/test.parquet", "train/train.parquet")
    with pytest.raises(DataError, match=r"test\.parquet: the path says the splits test and train"):
        _ = images(tmp_path / "hub").shape


def test_numbered_files_without_splits_are_one_table(tmp_path: Path) -> None:
    uuids = ("9f1c2d3e-0a1b-4c5d-8e9f-001122334455", "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee")
    by_numbers = ("0000.parquet", "0001.parquet")
    by_shards = ("a-00000-of-00002.parquet", "a-00001-of-00002.parquet")
    by_uuids = tuple(f"part-{n}-{uuid}.parquet" for n, uuid in enumerate(uuids))
    for names in (by_numbers, by_shards, by_uuids):
        made = images(hub(tmp_path / names[0], *names))
        assert (made.size, made.listed.splits) == (8, ())


def test_all_shards_must_be_there(tmp_path: Path) -> None:
    hub(tmp_path / "hub", "data/train-00000-of-00003.parquet", "data/test-00000-of-00001.parquet")
    message = r"data: lacks train-00001-of-00003, train-00002-of-00003. Try: get all files"
    with pytest.raises(DataError, match=message):
        _ = images(tmp_path / "hub").shape
    with pytest.raises(DataError, match=message):
        _ = images(tmp_path / "hub/data/train-00000-of-00003.parquet").shape
    with pytest.raises(DataError, match=message):
        _ = dataset(
            "table", tmp_path / "hub/data/train-00000-of-00003.parquet", label="label"
        ).shape
    hub(tmp_path / "hub", *(f"data/train-0000{n}-of-00003.parquet" for n in (1, 2)))
    assert images(tmp_path / "hub").size == 16


@pytest.mark.parametrize(
    "older", ["train-00000-of-00001.parquet", "train-00001-of-00002-0123456789abcdef.parquet"]
)
def test_shards_of_an_older_export_are_not_read(tmp_path: Path, older: str) -> None:
    hub(tmp_path / "hub", older, *(f"train-0000{n}-of-00002.parquet" for n in (0, 1)))
    with pytest.raises(DataError, match=r"hub: contains files of several exports of 'train', such"):
        _ = images(tmp_path / "hub").shape


def rename_classes(path: Path, *names: str) -> None:
    """Give a Parquet file other names of classes, or none."""
    table = pq.read_table(path)
    features = {"label": {"names": names, "_type": "ClassLabel"}} if names else {}
    text = json.dumps({"info": {"features": features}})
    pq.write_table(table.replace_schema_metadata({"huggingface": text}), path)


def test_names_of_classes_are_those_of_all_files(tmp_path: Path) -> None:
    hub(tmp_path / "hub", "train.parquet", "test.parquet")
    rename_classes(tmp_path / "hub" / "test.parquet", "fox", "ant")
    found = prepared(images(tmp_path / "hub"), tmp_path)
    assert found.classes == ("fox", "ant", "zebra")
    assert found.y.tolist() == [0, 1, 1, 0, 2, 1, 1, 2], "test stands first"


def test_files_beside_parquet_are_counted_and_endings_may_be_capitals(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub(tmp_path / "hub", "train.parquet", "test.PARQUET")
    (tmp_path / "hub" / "validation.csv").write_text("image,label")
    with caplog.at_level(logging.WARNING):
        found = prepared(images(tmp_path / "hub"), tmp_path)
    assert found.split is not None and found.split.tolist() == [1] * 4 + [0] * 4
    note = "files of other kinds are not read: 1 .csv"
    assert f"hub: {note}" in caplog.text
    assert [*found.notes] == [note]


def test_files_without_names_of_classes_beside_others_are_refused(tmp_path: Path) -> None:
    hub(tmp_path / "hub", "train.parquet", "test.parquet")
    rename_classes(tmp_path / "hub" / "test.parquet")
    with pytest.raises(DataError, match=r"test\.parquet: does not name the classes of its labels,"):
        _ = images(tmp_path / "hub").shape


def test_views_of_bytes_are_images(tmp_path: Path) -> None:
    table = pq.read_table(HUGGING_FACE)
    content = [cell["bytes"] for cell in table["image"].to_pylist()]
    views = {"image": pa.array(content, pa.binary_view()), "label": [*"ababab"]}
    pq.write_table(pa.table(views), tmp_path / "v.parquet")
    assert prepared(images(tmp_path / "v.parquet"), tmp_path).y.tolist() == [0, 1] * 3


# Content of images


@pytest.mark.parametrize("suffix", [".tif", ".gif", ".webp", ".png"])
def test_images_of_several_pages_are_refused(tmp_path: Path, suffix: str) -> None:
    photos(tmp_path / "photos")
    pages = [Image.fromarray(np.full((6, 5), shade, np.uint8)) for shade in (1, 99, 200)]
    path = tmp_path / "photos" / "dog" / f"9{suffix}"
    pages[0].save(path, save_all=True, append_images=pages[1:])
    with pytest.raises(DataError, match=rf"9{suffix}: the image has 3 pages or frames. Allowed: o"):
        _ = dataset("images", tmp_path / "photos").shape


def exif_behind_pixels(path: Path, orientation: int) -> None:
    """Write a PNG image whose EXIF data are its last chunk but one."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    with Image.open(path) as image:
        file = io.BytesIO()
        image.save(file, "png", exif=exif)
    content, first, chunks = file.getvalue(), 8, []
    while first < len(content):
        end = first + 12 + struct.unpack(">I", content[first : first + 4])[0]
        chunks.append(content[first:end])
        first = end
    chunks.sort(key=lambda chunk: [b"IHDR", b"IDAT", b"eXIf", b"IEND"].index(chunk[4:8]))
    path.write_bytes(content[:8] + b"".join(chunks))


def test_exif_data_behind_the_pixels_turn_an_image(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    for path in sorted((tmp_path / "photos").rglob("*.*")):
        with Image.open(path) as image:
            image.save(path.with_suffix(".png"))
        if path.suffix != ".png":
            path.unlink()
    for path in (tmp_path / "photos").rglob("*.png"):
        exif_behind_pixels(path, 6)
        with Image.open(path) as image:
            assert "exif" not in image.info
    made = dataset("images", tmp_path / "photos")
    assert made.shape == (1, 5, 6)
    x = prepared(made, tmp_path).x[0, 0].astype(int)
    assert (np.diff(x[:, 0]) > 0).all(), "it gets lighter downwards"


# Splits


def dealt(root: Path, keys: dict[str, object], **of_data: object) -> pd.DataFrame:
    """A homogeneous partition of the images in ``photos``."""
    place = Location("the test")
    component = registry.find("data set", "images", place)
    dataset_spec = component.parse({"path": str(root / "photos"), **of_data}, place)
    dataset_spec |= {"name": "images"}
    component = registry.find("partition scheme", "homogeneous", place)
    spec = component.parse(keys, place) | {"name": "homogeneous"}
    return partitioning.make_partition(spec, dataset_spec, root / "data", root)


def test_classes_without_images_or_without_training_images_are_named(tmp_path: Path) -> None:
    in_parquet(tmp_path / "photos" / "train.parquet", [0, 0, 0, 0])
    in_parquet(tmp_path / "photos" / "test.parquet", [0, 1, 1])
    for file in (tmp_path / "photos").iterdir():
        table = pq.read_table(file)
        names = {"label": {"names": ["cat", "dog", "owl"], "_type": "ClassLabel"}}
        metadata = {"huggingface": json.dumps({"info": {"features": names}})}
        pq.write_table(table.replace_schema_metadata(metadata), file)
    table = dealt(tmp_path, {"clients": 1, "test": "published"}, image="image")
    absent = "1 of 3 classes have no sample: 'owl'"
    assert table.attrs["notes"] == [absent, "1 class has no training sample: 'dog'"]


def test_a_test_split_that_is_dealt_like_the_rest_is_named(tmp_path: Path) -> None:
    for n in range(12):
        split, kind = "train" if n < 8 else "test", "cd"[n % 2]
        photo(tmp_path / "photos" / split / kind / f"{n}.png", 9 * n)
    note = "the 4 samples of the data's test split are dealt like all others, as `test` is 0.25, "
    table = dealt(tmp_path, {"clients": 1, "test": 0.25})
    assert table.attrs["notes"] == [note + "not published"]
    assert dealt(tmp_path, {"clients": 1, "test": "published"}).attrs["notes"] == []


@pytest.mark.parametrize("copies", [True, False])
def test_a_test_split_of_training_images_is_named(
    tmp_path: Path, copies: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(partition_statistics, "PIECE_BYTES", 100)
    for n in range(10):
        for split in ("train", "test"):
            shade = n if split == "train" or copies or n % 2 else 200
            photo(tmp_path / "photos" / split / "cd"[n % 2] / f"{n}.png", shade)
    table = dealt(tmp_path, {"clients": 1, "test": "published"})
    note = "each of the 10 test samples is a copy of a training or validation sample"
    notes = [note if copies else note.replace("each of", "5 of").replace("is a copy", "are copies")]
    assert table.attrs["notes"] == notes
    [record] = tmp_path.glob("partitions/*/partition.json")
    assert json.loads(record.read_text())["notes"] == notes
    assert all(note in caplog.text for note in notes)


# One rule for kinds of pixels


def opaque(image: Image.Image) -> Image.Image:
    image.putalpha(255)
    return image


def wide_png() -> bytes:
    """A PNG image of 6 x 5 pixels in 16 bits a channel, which Pillow cannot write."""
    lines = b"".join(b"\0" + b"\1\2" * 15 for _ in range(6))
    chunks = {b"IHDR": struct.pack(">IIBBBBB", 5, 6, 16, 2, 0, 0, 0)}
    chunks |= {b"IDAT": zlib.compress(lines), b"IEND": b""}
    parts = [
        struct.pack(">I", len(text)) + kind + text + struct.pack(">I", zlib.crc32(kind + text))
        for kind, text in chunks.items()
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


RAMP = np.tile(np.arange(5, dtype=np.uint8) * 50, (6, 1))
COLOURS = np.stack([RAMP, RAMP[::-1, ::-1], 7 + 0 * RAMP], axis=-1)
GREY, RGB = Image.fromarray(RAMP), Image.fromarray(COLOURS)
PALETTE = GREY.convert("P")
PALETTE.putpalette([n for shade in range(256) for n in (shade, 255 - shade, 9)])
KINDS: dict[str, tuple[Image.Image, np.ndarray]] = {
    "grey": (GREY, RAMP[None]),
    "grey with opaque alpha": (opaque(GREY.copy()), RAMP[None]),
    "two colours": (GREY.convert("1", dither=0), np.where(RAMP > 127, 255, 0)[None]),
    "colour": (RGB, COLOURS.transpose(2, 0, 1)),
    "colour with opaque alpha": (opaque(RGB.copy()), COLOURS.transpose(2, 0, 1)),
    "palette": (PALETTE, np.stack([RAMP, 255 - RAMP, 9 + 0 * RAMP])),
    "print": (RGB.convert("CMYK"), COLOURS.transpose(2, 0, 1)),
}
"""Images of 6 x 5 pixels, and what they become."""


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_pixels_that_lose_nothing(tmp_path: Path, kind: str) -> None:
    image, expected = KINDS[kind]
    suffix = "tif" if image.mode == "CMYK" else "png"
    for name in ("cat/1", "cat/2", "dog/1", "dog/2"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        image.save(tmp_path / "photos" / f"{name}.{suffix}")
    found = prepared(dataset("images", tmp_path / "photos"), tmp_path)
    assert np.array_equal(found.x, [expected] * 4)
    assert np.array_equal(image_array(image), expected)


def key_colour(image: Image.Image) -> dict[str, Any]:
    """Keys of a PNG file in which the value 50 is transparent."""
    return {"transparency": (50, 150, 7) if image.mode == "RGB" else 50}


HALF = Image.fromarray(np.dstack([COLOURS, RAMP]))
LOSSES: dict[str, tuple[Image.Image, dict[str, Any], str]] = {
    "red pixels that are transparent": (
        Image.new("RGBA", (5, 6), (255, 0, 0, 0)),
        {},
        "transparent pixels",
    ),
    "content in the alpha channel": (HALF, {}, "transparent pixels"),
    "grey with alpha": (HALF.convert("LA"), {}, "transparent pixels"),
    "a transparent colour": (RGB, key_colour(RGB), "transparent pixels"),
    "a transparent shade": (GREY, key_colour(GREY), "transparent pixels"),
    "a transparent place of the palette": (PALETTE, key_colour(PALETTE), "transparent pixels"),
    "16 bits": (Image.fromarray(RAMP.astype(np.uint16) * 257), {}, "mode I;16"),
    "floats": (Image.fromarray(RAMP / np.float32(255)), {}, "mode F"),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_kinds_of_pixels_of_which_something_would_be_lost(tmp_path: Path, kind: str) -> None:
    image, keys, message = LOSSES[kind]
    photos(tmp_path / "photos")
    path = tmp_path / "photos" / "dog" / f"9.{'tif' if image.mode == 'F' else 'png'}"
    image.save(path, **keys)
    with pytest.raises(DataError, match=rf"dog/9\.\w+: the image has {message}"):
        _ = prepared(dataset("images", tmp_path / "photos"), tmp_path)
    with Image.open(path) as again, pytest.raises(DataError, match=f"a picture: .*{message}"):
        image_array(again)


def test_colours_of_16_bits_are_not_cut_to_8(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    path = tmp_path / "photos" / "dog" / "9.png"
    path.write_bytes(wide_png())
    with pytest.raises(DataError, match=r"9\.png: the image has mode RGB of 16 bits a channel"):
        _ = dataset("images", tmp_path / "photos").shape
    with Image.open(path) as image, pytest.raises(DataError, match="16 bits"):
        image_array(image)


def test_a_picture_in_memory_that_its_camera_turned_is_refused(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    RGB.save(tmp_path / "a.jpg", exif=exif)
    with Image.open(tmp_path / "a.jpg") as image:
        for turned in (image, image.convert("RGB")):
            with pytest.raises(DataError, match=r"orientation 6.* Try: `ImageOps\.exif_transpose"):
                image_array(turned)
        upright = ImageOps.exif_transpose(image)
    assert upright is not None
    assert image_array(upright).shape == (3, 5, 6)
