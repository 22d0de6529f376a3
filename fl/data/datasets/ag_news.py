r"""AG News: titles and first sentences of news articles of four topics.

X. Zhang, J. Zhao and Y. LeCun. Character-level Convolutional Networks for Text Classification.
NeurIPS 2015. arXiv:1509.01626

Licence: none is stated; the corpus of A. Gulli behind it is given for research and other
non-commercial use.

Source: ``train.csv`` and ``test.csv`` of version 3 of the authors' set, which is on Google Drive;
fetched from a copy of it on GitHub, whose checksums are stated here. No header, every cell in
double quotes: class (1 World, 2 Sports, 3 Business, 4 Sci/Tech), title, description; a new line
within a text is written ``\n``.

What is done: the title is followed by the description; letters become small; words are runs of
letters, digits, ``_`` and ``'``, or one of ``. , ! ? ;``; the first ``length`` count, and 64 are
more than most of the articles have. Words become tokens as in `sent140`: the ``vocabulary``
commonest words of the training file, 0 being the commonest, and one token, ``vocabulary`` itself,
for every other word and to fill up. (Zhang et al. read characters.) There are no clients of its
own; ``split`` says which file a row is of.

Memory: a row at a time, and how often each word occurs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fl.base.errors import DataError
from fl.base.fields import Count
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers.tables import csv_rows
from fl.data.readers.texts import encode_words, vocabulary
from fl.data.readers.validation import check_sizes

COPY = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
CHECKSUM_BY_FILE = {
    "train.csv": "76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e",
    "test.csv": "521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699",
}
ARTICLES_BY_FILE = {"train.csv": 120_000, "test.csv": 7_600}
TOPICS = ("World", "Sports", "Business", "Sci/Tech")
WORD_PATTERN = re.compile(r"[\w']+|[.,!?;]")


@dataclass(frozen=True)
class AGNews:
    """Articles of ``length`` words in four classes.

    Attributes:
        vocabulary: Number of words with a token of their own.
        length: Number of words that are read of an article.
        complete: Check the files against their published checksums and sizes; false reads a subset.
    """

    vocabulary: Count = 10_000
    length: Count = 64
    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = tuple(
        Source(name, COPY + name, checksum) for name, checksum in CHECKSUM_BY_FILE.items()
    )
    classes: ClassVar[int] = len(TOPICS)
    natural_clients: ClassVar[int | None] = None
    published_splits: ClassVar[tuple[str, ...]] = ("train", "test")

    @property
    def shape(self) -> tuple[int, ...]:
        """The words of an article."""
        return (self.length,)

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return sum(ARTICLES_BY_FILE.values()) if self.complete else None

    @property
    def tokens(self) -> int:
        """Number of tokens: the vocabulary and one token for all other words."""
        return self.vocabulary + 1

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x int32 ``[127600, length]``, y int64 and split int8 ``[127600]``."""
        counts: Counter[str] = Counter()
        for _, words in read_articles(raw / "train.csv"):
            counts.update(words)
        number_by_word, sizes = vocabulary(counts, self.vocabulary), {}
        for split, name in enumerate(ARTICLES_BY_FILE):
            labels = []
            for label, words in read_articles(raw / name):
                tokens = encode_words(words, number_by_word, self.length, self.vocabulary)
                writer.append("x", np.array([tokens], np.int32))
                labels.append(label)
            sizes[name] = len(labels)
            writer.append("y", np.array(labels, np.int64))
            writer.append("split", np.full(len(labels), split, np.int8))
        if self.complete:
            check_sizes(sizes, ARTICLES_BY_FILE, "ag-news", "Zhang et al. 2015")
        writer.describe(TOPICS, normalisation=None)


def read_articles(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The class, from 0, and the words of each article of a file."""
    with path.open("rb") as stream:
        for number, row in csv_rows(stream, "utf-8"):
            if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
                problem = f"row {number} has {len(row)} cells and begins with {row[:1]}"
                raise DataError(f"{path}: {problem}. Allowed: three, with the first from 1 to 4")
            text = f"{row[1]} {row[2]}".replace("\\n", " ").lower()
            yield int(row[0]) - 1, WORD_PATTERN.findall(text)
