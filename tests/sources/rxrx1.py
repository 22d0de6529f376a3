"""RxRx1's two archives: six treatments, of which some are commoner, on four types of cells.

Format: rxrx1/metadata.csv and the paths of pictures, as public readers describe them
(fl4health/datasets/rxrx1 of VectorInstitute/FL4Health; the columns: site_id, well_id, cell_type,
dataset, experiment, plate, well, site, well_type, sirna, sirna_id).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sources import Made
from sources.packing import encoded, pack, shade

PARAMS = {"top": 4, "side": 16, "complete": False}
BROKEN = {
    "missing channel": (
        {"without": "RPE-02/Plate1/B02_s1_w3"},
        r"rxrx1-images\.zip: lacks images/RPE-02/Plate1/B02_s1_w3\.png. Try: delete",
    ),
    "too few treatments": ({"wells": {1138: 3, 30: 1}}, r"has 2 treatments. Allowed: 4 at least"),
}
CELLS = ("HEPG2", "HUVEC", "RPE", "U2OS")
CLIENTS = ("RPE", "HUVEC", "HEPG2", "U2OS")
WELLS = {1138: 3, 1108: 2, 30: 1, 7: 1, 5: 1, 900: 1}
"""Wells of each treatment on a plate: 1138 and 1108 are the commonest, then 5 and 7 of equals."""

KEPT = (5, 7, 1108, 1138)
HEAD = "site_id,well_id,cell_type,dataset,experiment,plate,well,site,well_type,sirna,sirna_id"


def images(wells: dict[int, int]) -> list[dict[str, object]]:
    treatments = [sirna for sirna, n in wells.items() for _ in range(n)]
    return [
        {
            "cell_type": cell,
            "dataset": split,
            "place": f"{cell}-{run:02}/Plate1/B{n + 2:02}_s{site}",
            "row": f"{cell},{split},{cell}-{run:02},1,B{n + 2:02},{site},treatment,s-{n},{sirna}",
            "sirna": sirna,
        }
        for cell in CELLS
        for run in range(1, 4)
        for split in ("train" if run % 3 else "test",)
        for n, sirna in enumerate(treatments)
        for site in (1, 2)
    ]


def write(
    folder: Path,
    wells: dict[int, int] = WELLS,
    **broken: object,
) -> Made:
    taken = images(wells)
    table = "\n".join([HEAD, *(f"site,well,{image['row']}" for image in taken), ""])
    pack(folder / "rxrx1-metadata.zip", {"rxrx1/metadata.csv": table.encode()}, **broken)
    pictures = {
        name: encoded(np.full((16, 16), shade(name), np.uint8))
        for image in taken
        for name in channels(image, 6)
    }
    pack(folder / "rxrx1-images.zip", pictures, **broken)
    kept = [
        image
        for cell in CLIENTS
        for image in taken
        if image["cell_type"] == cell and image["sirna"] in KEPT
    ]
    domain = np.array([CLIENTS.index(str(image["cell_type"])) for image in kept])
    return Made(
        samples=len(kept),
        shape=(3, 16, 16),
        classes=tuple(f"siRNA {sirna}" for sirna in KEPT),
        y=np.array([KEPT.index(int(str(image["sirna"]))) for image in kept]),
        x={
            row: np.stack([np.full((16, 16), shade(name)) for name in channels(kept[row], 3)])
            for row in range(0, len(kept), 13)
        },
        domains=CLIENTS,
        domain=domain,
        client=domain,
        split=np.array([image["dataset"] == "test" for image in kept], int),
    )


def channels(image: dict[str, object], count: int) -> list[str]:
    return [f"rxrx1/images/{image['place']}_w{w}.png" for w in range(1, count + 1)]
