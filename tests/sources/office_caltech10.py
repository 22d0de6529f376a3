"""FedBN's office_caltech_10_dataset.zip, with as many images as the real one has.

Format: utils/data_utils.py of med-air/FedBN (lists: pickles of (paths, names of classes), paths
relative to the folder above ``office_caltech_10``) and pyfed/dataset/dataset.py of tfzhou/FedFA
(how paths are made up). Some of Caltech's pictures are grey.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sources import Made
from sources.packing import encoded, pack, pickled, picture, seen

PARAMS = {"side": 16}
ZIP = "office_caltech_10_dataset.zip"
BROKEN = {
    "missing class folder": (
        {"without": "dslr/mug/"},
        rf"{ZIP}: lacks office_caltech_10/dslr/mug/frame_0008\.jpg and 14 others",
    ),
    "list of other classes": (
        {"spoil": "dslr_train", "strange": pickled((["x.jpg"], ["zebra"]))},
        r"dslr_train\.pkl: has the class 'zebra'. Allowed: back_pack, ",
    ),
    "another number of images": (
        {"spoil": "dslr_train", "strange": pickled((["x.jpg"], ["mug"]))},
        rf"{ZIP}: dslr train has 0 samples, expected 75 \(FedFA\)",
    ),
}
CLASSES = (
    *("back_pack", "bike", "calculator", "headphones", "keyboard", "laptop_computer", "monitor"),
    *("mouse", "mug", "projector"),
)
SPLITS = {
    "amazon": (459, 307, 192),
    "caltech": (538, 360, 225),
    "dslr": (75, 50, 32),
    "webcam": (141, 95, 59),
}
GREY = "office_caltech_10/caltech/mug/frame_0008.jpg"


def write(folder: Path, share: int = 1, **broken: object) -> Made:
    members, names, labels = {}, [], []
    splits = {name: [size // share for size in sizes] for name, sizes in SPLITS.items()}
    for domain, (train, val, test) in splits.items():
        y = [i % 10 for i in range(train + val + test)]
        paths = [
            f"office_caltech_10/{domain}/{CLASSES[c]}/frame_{i:04}.jpg" for i, c in enumerate(y)
        ]
        for name in sorted(paths):
            pixels = picture(name, 24, 20)
            members[name] = encoded(pixels[..., 0] if name == GREY else pixels, "JPEG")
        for part, chosen in (("train", slice(train + val)), ("test", slice(train + val, None))):
            listed = np.array(paths[chosen]), np.array([CLASSES[c] for c in y[chosen]])
            members[f"office_caltech_10/{domain}_{part}.pkl"] = pickled(listed)
        names += paths
        labels += y
    pack(folder / ZIP, members, **broken)
    domain = np.repeat(np.arange(4), [sum(sizes) for sizes in splits.values()])
    rows = (0, 458, 459, 957, 958, names.index(GREY), 2080, 2238, 2532) if share == 1 else ()
    return Made(
        samples=len(names),
        shape=(3, 16, 16),
        classes=CLASSES,
        y=np.array(labels),
        x={row: seen(members[names[row]], 16, 16) for row in rows},
        domains=tuple(SPLITS),
        domain=domain,
        client=domain,
        split=np.concatenate([np.repeat([0, 2, 1], sizes) for sizes in splits.values()]),
    )
