"""NIST Special Database 19, second edition, as far as LEAF reads it: two zips of PNG files.

Format: NIST's user guide (https://s3.amazonaws.com/nist-srd/SD19/) and LEAF's get_file_dirs.py
(https://github.com/TalwalkarLab/leaf): by_class/<ASCII code>/hsf_<n>/<file> beside train_<code>
(copies) and .mit lists; by_write/hsf_<n>/<writer>/<kind><writer>/<file>, kinds c, d, l and u;
128 x 128, colour files of black on white. A picture is byte by byte the same file in both.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from sources import Made
from sources.packing import encoded, pack

CLASSES = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PARAMS = {"complete": False}
BROKEN = {
    "picture without a class": ({"drop": True}, r"by_write\.zip: member \S+ is not in by_class"),
}
WRITERS = ("f0003_14", "f0000_14", "f2100_45")


def drawn(draw):
    """A PNG file of 128 x 128, and what the reader makes of it."""
    ink = draw.integers(0, 2, (128, 128), dtype=np.uint8) * 255
    small = Image.fromarray(ink).resize((28, 28), Image.Resampling.LANCZOS)
    return encoded(ink[..., None].repeat(3, 2)), np.asarray(small)


def write(folder, drop=False):
    draw = np.random.default_rng(6)
    x, y, client, by_writer, of_class = [], [], [], {}, {}
    for number, hand in enumerate(WRITERS):
        for kind, shown in (("d", "0379"), ("u", "AXZ"), ("l", "az"), ("c", "eWe")):
            for n, letter in enumerate(shown):
                content, pixels = drawn(draw)
                home = f"by_write/hsf_{number}/{hand}/{kind}{hand[1:]}"
                by_writer[f"{home}/{kind}{hand[1:]}_{n:05}.png"] = content
                of_class.setdefault(letter, []).append(content)
                x.append(pixels[None])
                y.append(CLASSES.index(letter))
                client.append(number)
    by_class = {}
    for letter, contents in of_class.items():
        home = f"by_class/{ord(letter):x}"
        by_class[f"{home}/hsf_0.mit"] = "a list"
        for n, content in enumerate(contents[: -1 if drop else None]):
            by_class[f"{home}/hsf_0/hsf_0_{n:05}.png"] = content
        by_class[f"{home}/train_x/train_x_00000.png"] = b"a copy"
    pack(folder / "by_write.zip", by_writer)
    pack(folder / "by_class.zip", by_class)
    return Made(
        samples=len(y),
        shape=(1, 28, 28),
        classes=tuple(CLASSES),
        y=np.array(y),
        x=dict(enumerate(x)),
        client=np.array(client),
    )
