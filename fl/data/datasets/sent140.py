"""Sentiment140's Twitter users as clients: is a tweet of good or of bad cheer.

A. Go, R. Bhayani and L. Huang. Twitter Sentiment Classification using Distant Supervision. Stanford
University, 2009; as a federated set: S. Caldas, S. M. K. Duddu, P. Wu, T. Li, J. Konečný, H. B.
McMahan, V. Smith and A. Talwalkar. LEAF: A Benchmark for Federated Settings. 2018.
arXiv:1812.01097.

Licence: none is stated; its authors ask to be cited, and the tweets are their writers'.

Source: ``trainingandtestdata.zip``, two csv files in Latin-1 without a header, a row of polarity (0
bad, 2 neither, 4 good), id, date, query, user and text each.

What the reader does is LEAF's preprocessing: both files are read; polarity 4 is class 1 and any
other is class 0, so neutral tweets, of which the test file has some, count as bad; words are runs
of letters, digits, ``_`` and ``'``, or one of ``. , ! ? ;``, case kept; the first 25 count. A user
is a client. Clients are sorted by name, their tweets are in the order of the files. The published
split (train, test) tells the two files apart: LEAF mixes them and draws a split at random from each
user's tweets, as the partition `natural` does.

Words become tokens: the ``vocabulary`` commonest words of the training file's tweets by the users
that are kept, 0 being the commonest. One token, ``vocabulary`` itself, stands for every other word
and fills up to 25, as LEAF's does for words unknown to GloVe. GloVe is not read: LEAF's LSTM takes
only its word list from it and learns its own vectors, as the models here do. (FedProx's keeps
GloVe's vectors fixed.)

``complete`` holds the files to LEAF's 1,600,498 tweets of 660,120 users, before users of fewer than
``min_samples`` tweets are left out. LEAF's own settings ask for 64. FedProx's 772 users and 40,783
tweets are a random subset of its authors'. The tokenisation was read off LEAF's preprocessing.

Beside the arrays that it maps, preparing files of the full size needs some 180 MB at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

import numpy as np

from fl.base.errors import DataError
from fl.base.fields import Count
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers.archives import iter_members, stream_name
from fl.data.readers.tables import csv_rows
from fl.data.readers.texts import WORD_PATTERN, encode_words, vocabulary
from fl.data.readers.validation import check_missing, check_sizes, clients_with_min_samples

LENGTH = 25
FILES = {"training.1600000.processed.noemoticon.csv": 0, "testdata.manual.2009.06.14.csv": 1}
"""The files, and what the published split calls their tweets."""
TWEETS, ALL_USERS = 1_600_498, 660_120
"""LEAF's, before users are left out."""
POLARITIES = {"0": 0, "2": 0, "4": 1}


class Tweet(NamedTuple):
    """A row: its class, its user, its text, and the split that its file is."""

    label: int
    user: str
    text: str
    split: int


@dataclass(frozen=True)
class Sent140:
    """Tweets of 25 words in two classes.

    Attributes:
        vocabulary: Number of words with a token of their own.
        min_samples: Least number of tweets of a user; others are left out.
        complete: Check the data against the published sizes; false reads a subset.
    """

    vocabulary: Count = 10_000
    min_samples: Count = 64
    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (
        Source(
            "trainingandtestdata.zip",
            "https://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",
            "004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57",
        ),
    )
    shape: ClassVar[tuple[int, ...]] = (LENGTH,)
    classes: ClassVar[int] = 2
    natural_clients: ClassVar[int | None] = ALL_USERS
    published_splits: ClassVar[tuple[str, ...]] = ("train", "test")

    @property
    def size(self) -> int | None:
        """Number of tweets before users are left out, or None for a subset."""
        return TWEETS if self.complete else None

    @property
    def tokens(self) -> int:
        """Number of tokens: the vocabulary and one token for all other words."""
        return self.vocabulary + 1

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x int32 ``[samples, 25]``; y int64, client int32 and split int8 ``[samples]``."""
        path = raw / self.sources[0].name
        tweets = Counter(tweet.user for tweet in read_tweets(path))
        if self.complete:
            totals = {"the two files": tweets.total()}
            check_sizes(totals, {"the two files": TWEETS}, str(path), "LEAF", "tweets")
            check_sizes(
                {"the two files": len(tweets)},
                {"the two files": ALL_USERS},
                str(path),
                "LEAF",
                "users",
            )
        users = clients_with_min_samples(tweets, self.min_samples, str(path))
        sizes = [tweets[user] for user in users]
        samples = sum(sizes)
        starts = np.cumsum(sizes) - sizes
        row_by_user = dict(zip(users, starts.tolist(), strict=True))
        number_by_word = self._words(path, row_by_user)
        x = writer.create("x", (samples, LENGTH), np.int32)
        y, split = np.empty(samples, np.int64), np.empty(samples, np.int8)
        for tweet in read_tweets(path):
            if (row := row_by_user.get(tweet.user)) is not None:
                x[row] = encode_words(
                    WORD_PATTERN.findall(tweet.text), number_by_word, LENGTH, self.vocabulary
                )
                y[row], split[row] = tweet.label, tweet.split
                row_by_user[tweet.user] += 1
        writer.save("y", y)
        writer.save("split", split)
        writer.save("client", np.repeat(np.arange(len(users), dtype=np.int32), sizes))
        writer.describe(["bad", "good"], normalisation=None)

    def _words(self, path: Path, users: dict[str, int]) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for tweet in read_tweets(path):
            if tweet.split == 0 and tweet.user in users:
                counts.update(WORD_PATTERN.findall(tweet.text))
        return vocabulary(counts, self.vocabulary)


def read_tweets(path: Path) -> Iterator[Tweet]:
    """The tweets of both files, in the archive's order."""
    read = set()
    for name, stream in iter_members(path):
        member = name.rpartition("/")[2]
        if member in FILES:
            read.add(member)
            yield from _tweets(stream, FILES[member])
    check_missing(path, sorted(FILES.keys() - read))


def _tweets(stream: BinaryIO, split: int) -> Iterator[Tweet]:
    for number, row in csv_rows(stream, "latin-1"):
        if len(row) != 6 or row[0] not in POLARITIES:
            problem = f"row {number} has {len(row)} cells and begins with {row[:2]}"
            allowed = "six, with the first 0, 2 or 4"
            raise DataError(f"{stream_name(stream)}: {problem}. Allowed: {allowed}")
        yield Tweet(POLARITIES[row[0]], row[4], row[5], split)
