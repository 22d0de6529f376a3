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

from fl.data.datasets.mnist import MNIST
from fl.data.download import Source

FASHION_SERVER = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FASHION_CHECKSUMS = {
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
GARMENTS = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
FASHION_NORMALISATION = {"scale": 1 / 255, "mean": 0.2860, "sd": 0.3530}
"""Of all pixels of the training set, on the scale from 0 to 1, as is customary to four digits."""


class FashionMNIST(MNIST):  # noqa: D101 (the key's meaning is inherited)
    sources = tuple(
        Source(name, FASHION_SERVER + name, checksum)
        for name, checksum in FASHION_CHECKSUMS.items()
    )
    names = GARMENTS
    normalisation = FASHION_NORMALISATION
    publication = ("fashion-mnist", "Xiao et al. 2017")
