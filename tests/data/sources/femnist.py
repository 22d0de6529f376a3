"""NIST Special Database 19, second edition, as far as LEAF reads it: two zips of PNG files.

Format: NIST's user guide (https://s3.amazonaws.com/nist-srd/SD19/) and LEAF's get_file_dirs.py
(https://github.com/TalwalkarLab/leaf): by_class/<ASCII code>/hsf_<n>/<file> beside train_<code>
(copies) and .mit lists; by_write/hsf_<n>/<writer>/<kind><writer>/<file>, kinds c, d, l and u;
128 x 128, colour files of black on white. A picture is byte by byte the same file in both.
"""

from __future__ import annotations

import io
import zipfile

import numpy as np
from PIL import Image

from sources import Made

CLASSES = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PARAMS = {"complete": False}
BROKEN = {
    "picture without a class": ({"drop": True}, r"by_write\.zip: member \S+ is not in by_class"),
    "unknown class": ({"code": "2f"}, r"by_class\.zip: member \S+: folder 2f is no class"),
    "empty": ({"writers": ()}, r"array x is missing"),
}
WRITERS = ("f0003_14", "f0000_14", "f2100_45")


def picture(draw, mode):
    ink = Image.fromarray(draw.integers(0, 2, (128, 128), dtype=np.uint8) * 255)
    out = io.BytesIO()
    ink.convert(mode).save(out, "TIFF" if mode == "CMYK" else "PNG")
    return out.getvalue(), np.asarray(ink.resize((28, 28), Image.Resampling.LANCZOS))


def write(folder, drop=False, code="", mode="RGB", writers=WRITERS, each=1):
    draw = np.random.default_rng(6)
    x, y, client, of_class = [], [], [], {}
    with zipfile.ZipFile(folder / "by_write.zip", "w") as archive:
        for number, hand in enumerate(writers):
            part = f"by_write/hsf_{number}/{hand}"
            for kind, shown in (("d", "0379"), ("u", "AXZ"), ("l", "az"), ("c", "eWe")):
                for n, letter in enumerate(shown * each):
                    content, pixels = picture(draw, mode)
                    path = f"{part}/{kind}{hand[1:]}/{kind}{hand[1:]}_{n:05}.png"
                    archive.writestr(path, content)
                    of_class.setdefault(letter, []).append(content)
                    x.append(pixels[None])
                    y.append(CLASSES.index(letter))
                    client.append(number)
    with zipfile.ZipFile(folder / "by_class.zip", "w") as archive:
        for letter, contents in of_class.items():
            home = f"by_class/{code if code and letter == '7' else format(ord(letter), 'x')}"
            archive.writestr(f"{home}/hsf_0.mit", "a list")
            for n, content in enumerate(contents[: -1 if drop else None]):
                archive.writestr(f"{home}/hsf_0/hsf_0_{n:05}.png", content)
            archive.writestr(f"{home}/train_x/train_x_00000.png", b"a copy")
    return Made(
        samples=len(y),
        shape=(1, 28, 28),
        classes=tuple(CLASSES),
        y=np.array(y),
        x=dict(enumerate(x)),
        client=np.array(client),
    )
