"""Fashion-MNIST: photographs of clothes, 28 x 28 grey pixels, in ten classes; a drop-in for MNIST.

H. Xiao, K. Rasul and R. Vollgraf. Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine
Learning Algorithms. 2017. arXiv:1708.07747

Licence: MIT. The files come from the bucket that https://github.com/zalandoresearch/fashion-mnist
links; their names are MNIST's. It states MD5 sums; the SHA-256 here are those of files with these.

Images and labels are taken as they are, the training set before the test set; ``split`` says which
is which.

Memory: as for MNIST, which the same code reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fl.data.counts import hold
from fl.data.datasets.mnist import PUBLISHED, SIDE, read_parts
from fl.data.download import Source
from fl.data.prepared import Writer

HOME = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
CHECKSUMS = {
    "train-images-idx3-ubyte.gz": (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
    ),
    "train-labels-idx1-ubyte.gz": (
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
    ),
    "t10k-images-idx3-ubyte.gz": (
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
    ),
}
CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
NORMALISATION = {"scale": 1 / 255, "mean": 0.2860, "sd": 0.3530}
"""Of all pixels of the training set, on the scale from 0 to 1, as is customary to four digits."""


@dataclass(frozen=True)
class FashionMNIST:
    """Images of 1 x 28 x 28 pixels, 0 to 255, in ten classes.

    complete: hold the files to their published checksums and sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = tuple(
        Source(name, HOME + name, checksum) for name, checksum in CHECKSUMS.items()
    )
    shape: ClassVar[tuple[int, ...]] = (1, SIDE, SIDE)
    classes: ClassVar[int] = len(CLASSES)
    natural: ClassVar[int | None] = None
    published_splits: ClassVar[tuple[str, ...]] = ("train", "test")

    @property
    def size(self) -> int | None:
        """How many samples there are; None of a subset."""
        return sum(PUBLISHED.values()) if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[70000, 1, 28, 28]``, y int64 and split int8 ``[70000]``."""
        counts = read_parts(raw, writer)
        if self.complete:
            hold(counts, PUBLISHED, "fashion-mnist", "Xiao et al. 2017")
        writer.describe(CLASSES, normalisation=NORMALISATION)
