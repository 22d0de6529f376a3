"""The Preprocessed Connectomes Project's table and series, as many subjects as there are.

Format: the rows of the table as xxlya/Fed_ABIDE keeps them (an index without a name, Unnamed: 0,
SUB_ID, X, subject, SITE_ID, FILE_ID, DX_GROUP, ...) and the project's download.md
(``<FILE_ID>_rois_ho.1D``: a line of region numbers after #, then a row of tab-separated signals for
each point of time).
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from sources import Made
from sources.packing import pack

PARAMS: dict[str, object] = {}
STUDY = {"models": [{"mlp": {"hidden": [8]}}]}
BROKEN = {
    "missing series": ({"without": "USM_0050190"}, r"rois_ho\.zip: lacks USM_0050190_rois_ho\.1D."),
    "series of another atlas": (
        {"spoil": "USM_0050190", "strange": b"#1\t#2\n1.0\t2.0\n3.0\t4.0\n"},
        r"rois_ho/USM_0050190_rois_ho\.1D: has 2 rows of 2. Allowed: two rows or more of 111",
    ),
}
SERIES = {
    "NYU": 175,
    "USM": 71,
    "UM_1": 100,
    "UM_2": 40,
    "UCLA_1": 80,
    "UCLA_2": 18,
    "CALTECH": 37,
    "LEUVEN_1": 63,
}
"""Subjects with time series; two sites more than are read by default."""

READ = ("NYU", "USM", "UM", "UCLA")
LACKING = 10
"""Subjects of each site without a series."""

REGIONS, TIMES = 111, 4


def subjects() -> list[tuple[str, str, int]]:
    """Site, file and group (1 autism, 2 control) of each row of the table."""
    rows = []
    for site, n in SERIES.items():
        for i in range(n + LACKING):
            lacks = i % 2 == 1 and i // 2 < LACKING
            name = "Caltech" if site == "CALTECH" else site
            file = "no_filename" if lacks else f"{name}_{50001 + len(rows):07}"
            rows.append((site, file, 1 + i // 2 % 2))
    return rows


def signals(file: str) -> np.ndarray:
    """[times, regions]: noise, but the third region is twice the first and the fourth is silent."""
    rng = np.random.default_rng([ord(letter) for letter in file])
    values = np.round(rng.normal(0, 10, (TIMES, REGIONS)), 6)
    values[:, 2] = 2 * values[:, 0]
    values[:, 3] = 0
    return values


def write(folder: Path, **broken: object) -> Made:
    rows = subjects()
    head = ["", "Unnamed: 0", "SUB_ID", "X", "subject", "SITE_ID", "FILE_ID", "DX_GROUP", "SEX"]
    with (folder / "Phenotypic_V1_0b_preprocessed1.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(head)
        for i, (site, name, kind) in enumerate(rows):
            about = [i, i + 1, 50001 + i, i + 1, 50001 + i, site, name]
            table.writerow([*about, kind, 1])
    names = "\t".join(f"#{2001 + r}" for r in range(REGIONS))
    series = {}
    for _, name, _ in rows:
        if name != "no_filename":
            lines = ("\t".join(f"{value:.6f}" for value in row) for row in signals(name))
            series[f"rois_ho/{name}_rois_ho.1D"] = "\n".join([names, *lines, ""]).encode()
    pack(folder / "rois_ho.zip", series, **broken)
    kept = [
        (domain, name, kind)
        for domain, wanted in enumerate(READ)
        for site, name, kind in rows
        if name != "no_filename" and site.removesuffix("_1").removesuffix("_2") == wanted
    ]
    domain = np.array([domain for domain, _, _ in kept])
    return Made(
        samples=len(kept),
        shape=(REGIONS * (REGIONS - 1) // 2,),
        classes=("control", "autism"),
        y=np.array([kind == 1 for _, _, kind in kept], int),
        x={row: correlations(kept[row][1]) for row in range(0, len(kept), 53)},
        domains=READ,
        domain=domain,
        client=domain,
    )


def correlations(file: str) -> np.ndarray:
    """By numpy, whose silent region is not a number. Both ways agree in single precision."""
    with np.errstate(invalid="ignore", divide="ignore"):
        matrix = np.corrcoef(signals(file), rowvar=False)
    pairs = [matrix[i, j] for i in range(REGIONS) for j in range(i + 1, REGIONS)]
    return np.nan_to_num(np.array(pairs)).astype(np.float32)
