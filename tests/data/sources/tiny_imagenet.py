"""Tiny ImageNet: a zip of folders of JPEG files and of lists.

Format: http://cs231n.stanford.edu/tiny-imagenet-200.zip as loaders describe it, among them
https://github.com/tjmoon0104/pytorch-tiny-imagenet: wnids.txt, words.txt (id, tab, words; many more
than are used), train/<id>/images/<id>_<n>.JPEG beside train/<id>/<id>_boxes.txt, val/images with
val/val_annotations.txt (file, id, box), test/images without labels.
"""

from __future__ import annotations

import io
import zipfile

import numpy as np
from PIL import Image

from sources import Made

IDS = [f"n{n:08}" for n in np.random.default_rng(4).permutation(200) + 1443537]
PARAMS = {"complete": False}
BROKEN = {
    "missing annotations": (
        {"without": "val/val_annotations.txt"},
        r"tiny-imagenet-200\.zip: has no member tiny-imagenet-200/val/val_annotations\.txt",
    ),
    "missing class folder": ({"empty": IDS[7]}, rf"zip: lacks train/{IDS[7]}"),
    "short list": ({"ids": 199}, r"wnids\.txt names 199 classes, expected 200"),
    "picture without a class": ({"named": 199}, r"member \S+/val_199\.JPEG belongs to no class"),
}


def jpeg(pixels, mode="RGB"):
    """A JPEG file and what any decoder makes of it."""
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, "JPEG", quality=95)
    found = np.asarray(Image.open(out).convert("RGB"))
    return out.getvalue(), found.transpose(2, 0, 1)


def write(folder, without="", empty="", ids=200, named=200, mode="RGB", each=1):
    draw = np.random.default_rng(5)
    order = sorted(IDS)
    x, y, split = [], [], []
    lines = [f"val_{n}.JPEG\t{home}\t0\t32\t44\t62" for n, home in enumerate(IDS)][:named]
    texts = {
        "wnids.txt": "\n".join(IDS[:ids]) + "\n",
        "words.txt": "".join(f"{home}\tword {home}, other\n" for home in [*IDS, "n00000001"]),
        "val/val_annotations.txt": "\n".join(lines) + "\n",
        **{f"train/{home}/{home}_boxes.txt": f"{home}_0.JPEG\t0\t0\t1\t1\n" for home in IDS[:3]},
    }
    with zipfile.ZipFile(folder / "tiny-imagenet-200.zip", "w") as archive:

        def add(name, content):
            if name != without:
                archive.writestr(f"tiny-imagenet-200/{name}", content)

        for n, home in enumerate(IDS):
            shape = (64, 64, 3) if n % 50 else (64, 64)  # Some are grey.
            content, found = jpeg(draw.integers(0, 256, shape, dtype=np.uint8), mode)
            add(f"val/images/val_{n}.JPEG", content)
            x.append(found)
            y.append(order.index(home))
            split.append(2)
        for name, text in texts.items():
            add(name, text)
        add("test/images/test_0.JPEG", content)
        for n, home in enumerate(IDS * each):
            content, found = jpeg(draw.integers(0, 256, (64, 64, 3), dtype=np.uint8))
            if home != empty:
                add(f"train/{home}/images/{home}_{n // len(IDS)}.JPEG", content)
            x.append(found)
            y.append(order.index(home))
            split.append(0)
    return Made(
        samples=len(y),
        shape=(3, 64, 64),
        classes=tuple(f"word {home}, other" for home in order),
        y=np.array(y),
        x=dict(enumerate(x)),
        split=np.array(split),
    )
