"""Fashion-MNIST: MNIST's four files, under MNIST's names, with other classes.

Format: the table "Get the Data" of https://github.com/zalandoresearch/fashion-mnist, which says
that they are like MNIST's; its table "Labels" names the classes.
"""

from __future__ import annotations

from dataclasses import replace

from sources import mnist

PARAMS = mnist.PARAMS
BROKEN = mnist.BROKEN
CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def write(folder, **broken):
    return replace(mnist.write(folder, **broken), classes=CLASSES)
