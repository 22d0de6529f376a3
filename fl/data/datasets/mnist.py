"""Handwritten digits of 28 x 28 pixels, 60,000 to train on and 10,000 to test on.

Y. LeCun, L. Bottou, Y. Bengio and P. Haffner. Gradient-Based Learning Applied to Document
Recognition. Proceedings of the IEEE 86(11), 1998. doi:10.1109/5.726791

Licence: none is stated at http://yann.lecun.com/exdb/mnist/; commonly given as CC BY-SA 3.0. The
files come from the copy that PyTorch keeps, as their home asks for a password.

Images and labels are taken as they are, the training set before the test set; ``split`` says which
is which.

Beside the arrays, preparing files of the full size holds some 20 MB at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fl.data.counts import hold
from fl.data.download import Source
from fl.data.idx import PUBLISHED, SIDE, read_parts
from fl.data.prepared import Writer

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
CHECKSUMS = {
    "train-images-idx3-ubyte.gz": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    "train-labels-idx1-ubyte.gz": (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
    ),
    "t10k-images-idx3-ubyte.gz": (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
    ),
}
NORMALISATION = {"scale": 1 / 255, "mean": 0.1307, "sd": 0.3081}
"""Of all pixels of the training set, on the scale from 0 to 1, as is customary to four digits."""


@dataclass(frozen=True)
class MNIST:
    """Images of 1 x 28 x 28 pixels, 0 to 255, in ten classes.

    complete: hold the files to their published checksums and sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = tuple(
        Source(name, MIRROR + name, checksum) for name, checksum in CHECKSUMS.items()
    )
    shape: ClassVar[tuple[int, ...]] = (1, SIDE, SIDE)
    classes: ClassVar[int] = 10
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
            hold(counts, PUBLISHED, "mnist", "LeCun et al. 1998")
        writer.describe([str(d) for d in range(self.classes)], normalisation=NORMALISATION)
