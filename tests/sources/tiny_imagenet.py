"""Tiny ImageNet: a zip of folders of JPEG files and of lists.

Format: http://cs231n.stanford.edu/tiny-imagenet-200.zip as loaders describe it, among them
https://github.com/tjmoon0104/pytorch-tiny-imagenet: wnids.txt, words.txt (id, tab, words; many more
than are used), train/<id>/images/<id>_<n>.JPEG beside train/<id>/<id>_boxes.txt, val/images with
val/val_annotations.txt (file, id, box), test/images without labels.
"""

from __future__ import annotations

import numpy as np

from sources import Made
from sources.packing import encoded, pack, seen

IDS = [f"n{n:08}" for n in np.random.default_rng(4).permutation(200) + 1443537]
PARAMS = {"complete": False}
BROKEN = {
    "missing annotations": (
        {"without": "val/val_annotations.txt"},
        r"tiny-imagenet-200\.zip: has no member tiny-imagenet-200/val/val_annotations\.txt",
    ),
}


def write(folder, **broken):
    draw = np.random.default_rng(5)
    order = sorted(IDS)
    members = {}
    for n in range(len(IDS)):
        shape = (64, 64, 3) if n % 50 else (64, 64)  # Some are grey.
        content = encoded(draw.integers(0, 256, shape, dtype=np.uint8), "JPEG", quality=95)
        members[f"val/images/val_{n}.JPEG"] = content
    lines = [f"val_{n}.JPEG\t{home}\t0\t32\t44\t62" for n, home in enumerate(IDS)]
    members["wnids.txt"] = "\n".join(IDS) + "\n"
    members["words.txt"] = "".join(f"{home}\tword {home}, other\n" for home in [*IDS, "n00000001"])
    members["val/val_annotations.txt"] = "\n".join(lines) + "\n"
    members[f"train/{IDS[0]}/{IDS[0]}_boxes.txt"] = f"{IDS[0]}_0.JPEG\t0\t0\t1\t1\n"
    members["test/images/test_0.JPEG"] = content
    for home in IDS:
        content = encoded(draw.integers(0, 256, (64, 64, 3), dtype=np.uint8), "JPEG", quality=95)
        members[f"train/{home}/images/{home}_0.JPEG"] = content
    x = [seen(c, 64, 64) for n, c in members.items() if "JPEG" in n and "test" not in n]
    packed = {f"tiny-imagenet-200/{name}": content for name, content in members.items()}
    pack(folder / "tiny-imagenet-200.zip", packed, **broken)
    y = [order.index(home) for home in IDS] * 2
    return Made(
        samples=len(y),
        shape=(3, 64, 64),
        classes=tuple(f"word {home}, other" for home in order),
        y=np.array(y),
        x=dict(enumerate(x)),
        split=np.repeat([2, 0], len(IDS)),
    )
