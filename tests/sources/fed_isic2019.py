"""The ISIC 2019 challenge's files and FLamby's train_test_split, of 48 images.

Format: the rows of FLamby's train_test_split; dataset_creation_scripts/download_isic.py of
owkin/FLamby for the challenge's names of files and columns.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from sources import Made
from sources.packing import encoded, pack, picture

PARAMS = {"complete": False}
BROKEN = {
    "missing image": (
        {"without": "ISIC_0000007"},
        r"ISIC_2019_Training_Input\.zip: lacks ISIC_0000007\.jpg. Try: delete",
    ),
    "another label": (
        {"labelled": 1},
        r"train_test_split: ISIC_0000047 has target 0, but ISIC_2019_Training_GroundT.* says 7",
    ),
}
CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
CENTRES = (
    *("BCN", "HAM_vidir_molemax", "HAM_vidir_modern", "HAM_rosendahl", "MSK", "HAM_vienna_dias"),
)
LESIONS = ("BCN_", "HAM_", "HAM_", "HAM_", "MSK4", "HAM_")
IMAGES = 48
HEAD = f"image,{','.join(CLASSES)},UNK,target,center,fold,fold2"


def image(i: int) -> str:
    return f"ISIC_{i:07}" + ("_downsampled" if i % 6 == 4 else "")


def target(i: int) -> int:
    return i // 6 % 8


def fold(i: int) -> str:
    return "test" if i // 6 % 4 == 3 else "train"


def one_hot(i: int) -> str:
    return ",".join("1.0" if c == target(i) else "0.0" for c in range(9))


def write(
    folder: Path,
    labelled: int = 0,
    **broken: object,
) -> Made:
    # Images are of any shape; the last is in the challenge but of no known centre.
    everything = range(IMAGES + 1)
    content = {image(i): encoded(picture(image(i), 60 + i, 90 - i), "JPEG") for i in everything}
    members = {f"ISIC_2019_Training_Input/{name}.jpg": photo for name, photo in content.items()}
    members["ISIC_2019_Training_Input/LICENSE.txt"] = b"CC BY-NC 4.0"
    pack(folder / "ISIC_2019_Training_Input.zip", members, **broken)
    truth = [f"{image(i)},{one_hot(i)}" for i in everything]
    save(folder / "ISIC_2019_Training_GroundTruth.csv", f"image,{','.join(CLASSES)},UNK", truth)
    lesions = [f"{LESIONS[i % 6]}_{i:07}".replace("__", "_") for i in range(IMAGES)] + [""]
    about = [f"{image(i)},55.0,anterior torso,{lesions[i]},female" for i in everything]
    columns = "image,age_approx,anatom_site_general,lesion_id,sex"
    save(folder / "ISIC_2019_Training_Metadata.csv", columns, about)
    order = list(reversed(range(IMAGES)))
    rows = []
    for n, i in enumerate(order):
        y = 0 if labelled and n == 0 else target(i)
        centre = i % 6
        rows.append(f"{image(i)},{one_hot(i)},{y},{centre},{fold(i)},{fold(i)}_{centre}")
    save(folder / "train_test_split", HEAD, rows)
    domain = np.array([i % 6 for i in order])
    return Made(
        samples=IMAGES,
        shape=(3, 224, 224),
        classes=CLASSES,
        y=np.array([target(i) for i in order]),
        x={row: preprocessed(content[image(order[row])]) for row in (0, 1, 20, 33, 34, 47)},
        domains=CENTRES,
        domain=domain,
        client=domain,
        split=np.array([fold(i) == "test" for i in order], int),
    )


def preprocessed(content: bytes) -> np.ndarray:
    """FLamby's way, pixel by pixel, on a picture whose shorter side becomes 224."""
    picture = Image.open(io.BytesIO(content))
    ratio = 224 / min(picture.size)
    size = [int(side * ratio + 1e-9) for side in picture.size]
    pixels = np.asarray(picture.resize(size, Image.Resampling.BILINEAR)).astype(float)
    norm = np.array([np.mean(pixels[..., c] ** 6) ** (1 / 6) for c in range(3)])
    light = norm / np.sqrt(np.sum(norm**2))
    whole = np.minimum(pixels / (light * np.sqrt(3)), 255).astype(np.uint8)
    left, top = (size[0] - 224) // 2, (size[1] - 224) // 2
    return np.moveaxis(whole[top : top + 224, left : left + 224], 2, 0)


def save(path: Path, head: str, rows: list[str]) -> None:
    path.write_text("\n".join([head, *rows]) + "\n")
