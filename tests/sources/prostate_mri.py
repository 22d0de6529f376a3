"""Processed_data_nii.zip of the multi-site prostate collection: two small volumes a site.

Format: the folders and names that pyfed/dataset/dataset.py of tfzhou/FedFA and utils/dataset.py of
med-air/HarmoFL read (``<site>/Case<nn>.nii.gz``, ``Case<nn>_segmentation.nii.gz``, BMC with a
capital), 384 x 384 pixels a slice (https://liuquande.github.io/SAML/); labels of RUNMC and BMC are
1 and 2. The header is written here field by field, by the standard.
"""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

from fl.base.rng import generator
from sources import Made
from sources.packing import pack

PARAMS = {"complete": False}
STUDY = {"models": [{"mlp": {"hidden": [4]}}]}
ZIP = "Processed_data_nii.zip"
SITES = ("BIDMC", "HK", "I2CVB", "BMC", "RUNMC", "UCL")
CASES, SLICES, SIDE = 2, 8, 384
SHOWN = (2, 3, 4, 6)
"""The slices of each volume that show the gland."""

CODES = {"u1": (2, 8), "i2": (4, 16), "i4": (8, 32), "f4": (16, 32), "f8": (64, 64)}
"""The standard's code and bits of a type."""


def nifti(
    volume: np.ndarray, slope: float = 1.0, intercept: float = 0.0, order: str = "<"
) -> bytes:
    """A NIfTI-1 file of ``volume`` [slices, rows, columns]; columns run fastest."""
    code, bits = CODES[volume.dtype.str[1:]]
    header = bytearray(352)
    struct.pack_into(f"{order}i", header, 0, 348)
    struct.pack_into(f"{order}8h", header, 40, 3, *volume.shape[::-1], 1, 1, 1, 1)
    struct.pack_into(f"{order}2h", header, 70, code, bits)
    struct.pack_into(f"{order}3f", header, 108, 352.0, slope, intercept)
    header[344:348] = b"n+1\0"
    return bytes(header) + volume.astype(volume.dtype.newbyteorder(order)).tobytes()


def packed(volume: np.ndarray) -> bytes:
    return gzip.compress(nifti(volume), 1)


BROKEN = {
    "missing volume": (
        {"without": "/UCL/Case01.nii"},
        rf"{ZIP}: lacks UCL/Case01\.nii\.gz. Try: delete",
    ),
    "volume of another size": (
        {"spoil": "/UCL/Case01.nii", "strange": packed(np.zeros((3, 4, 4), np.uint8))},
        r"UCL/Case01\.nii\.gz: has the shape \[3, 4, 4\]. Allowed: \[slices, 384, 384\]",
    ),
}


def volume(site: str, case: int) -> np.ndarray:
    """int16 [8, 384, 384]: values grow with the slice, to the right and, a little, downwards.

    A stripe of 2 of the 384 rows is much brighter than the rest.
    """
    values = 100 * np.arange(SLICES)[:, None, None] + np.arange(SIDE) // 4
    values = values + SITES.index(site) + 10 * case + np.arange(SIDE)[:, None] // 100
    values[:, -2:] = 20000
    return values.astype(np.int16)


def segmentation(site: str, case: int) -> np.ndarray:
    """uint8 [8, 384, 384]: a rectangle whose height is ten times the slice's number."""
    labels = np.zeros((SLICES, SIDE, SIDE), np.uint8)
    for i in SHOWN:
        labels[i, 100 : 100 + 10 * i, 50 : 60 + case] = 2 if site in ("BMC", "RUNMC") else 1
        labels[i, 100, 50] = 1
    return labels


def write(folder: Path, **broken: object) -> Made:
    members = {}
    for site in SITES:
        ending = "Segmentation" if site == "BMC" else "segmentation"
        for case in range(CASES):
            stem = f"Processed_data_nii/{site}/Case{case:02}"
            kind = np.float64 if site == "HK" else np.int16
            members[f"{stem}.nii.gz"] = packed(volume(site, case).astype(kind))
            members[f"{stem}_{ending}.nii.gz"] = packed(segmentation(site, case))
    members["__MACOSX/Processed_data_nii/HK/._Case00.nii.gz"] = b"a Mac's note"
    pack(folder / ZIP, dict(sorted(members.items())), **broken)
    chosen = [(site, *location) for site in SITES for location in order(site)]
    domain = np.repeat(np.arange(6), 6)
    rows = range(0, 36, 5)
    return Made(
        samples=36,
        shape=(3, SIDE, SIDE),
        classes=("no gland", "gland"),
        y=np.ones(36, int),
        x={row: channels(*chosen[row]) for row in rows},
        mask={row: segmentation(*chosen[row][:2])[chosen[row][2]] > 0 for row in rows},
        domains=SITES,
        domain=domain,
        client=domain,
        split=np.tile([0, 0, 0, 0, 2, 1], 6),
    )


def order(site: str) -> list[tuple[int, int]]:
    """Case and slice of a site's six samples: of eight, int(.6 * 8), int(.2 * 8), int(.2 * 8)."""
    samples = [(case, i) for case in range(CASES) for i in SHOWN]
    shuffled = [samples[n] for n in generator(0, f"prostate-mri {site}").permutation(8)]
    return [*shuffled[:4], shuffled[4], shuffled[7]]


def channels(site: str, case: int, i: int) -> np.ndarray:
    """The slice and its neighbours, scaled as HarmoFL does."""
    values = volume(site, case).astype(float)
    low, high = values.min(), np.quantile(values, 0.99)
    three = np.clip(values[i - 1 : i + 2], low, high)
    return ((three - low) / (high - low) * 255).astype(np.uint8)
