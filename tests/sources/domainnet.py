"""DomainNet's archives and FedBN's lists.

Format: the archives' folders ``<domain>/<class>/<domain>_<class number>_<image>.jpg`` (README of
med-air/FedBN and the publishers' lists, which name images so); lists as Office-Caltech-10's, of
paths that start with ``DomainNet/`` (pyfed/dataset/dataset.py of tfzhou/FedFA).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sources import Made
from sources.packing import encoded, pack, pickled, picture, seen

PARAMS = {"side": 16, "complete": False}
BROKEN = {
    "missing class folder": (
        {"without": "real/tiger/"},
        r"real\.zip: lacks real/tiger/real_005_000005\.jpg and 2 others",
    ),
}
CLASSES = (
    *("bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill"),
    *("wine_glass", "zebra"),
)
DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
TRAIN, VAL, TEST = 20, 5, 10


def write(folder: Path, **broken: object) -> Made:
    lists, x = {}, {}
    each = TRAIN + VAL + TEST
    for d, domain in enumerate(DOMAINS):
        names = [f"{domain}/{CLASSES[i % 10]}/{domain}_{i % 10:03}_{i:06}.jpg" for i in range(each)]
        # Of the other 335 classes there is one here, which no list names.
        more = sorted([*names, f"{domain}/aircraft_carrier/{domain}_001_000001.jpg"])
        content = {name: encoded(picture(name, 20, 24), "JPEG") for name in more}
        pack(folder / f"{domain}.zip", content, **broken)
        for part, chosen in (("train", slice(TRAIN + VAL)), ("test", slice(TRAIN + VAL, None))):
            listed = [f"DomainNet/{name}" for name in names[chosen]]
            labels = [name.split("/")[1] for name in names[chosen]]
            lists[f"DomainNet/{domain}_{part}.pkl"] = pickled((np.array(listed), np.array(labels)))
        x |= {
            d * each + i: seen(content[names[i]], 16, 16) for i in (0, TRAIN, TRAIN + VAL, each - 1)
        }
    pack(folder / "domainnet_dataset.zip", lists, **broken)
    domain = np.repeat(np.arange(6), each)
    return Made(
        samples=6 * each,
        shape=(3, 16, 16),
        classes=CLASSES,
        y=np.tile(np.arange(each) % 10, 6),
        x=x,
        domains=DOMAINS,
        domain=domain,
        client=domain,
        split=np.tile(np.repeat([0, 2, 1], [TRAIN, VAL, TEST]), 6),
    )
