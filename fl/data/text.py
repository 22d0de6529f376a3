"""Texts as tokens: characters of LEAF's alphabet, or words numbered by how common they are. And
tables of texts, row by row.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO

import numpy as np

from fl.base.errors import wrap_read_errors
from fl.data.archives import name_of

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's, of 80 characters."""
WORD = re.compile(r"[\w']+|[.,!?;]")
"""What LEAF takes for a word."""
_NUMBERS = {character: number for number, character in enumerate(ALPHABET)}


def characters(text: str) -> np.ndarray:
    """The number of each character in `ALPHABET`, uint8 ``[characters]``; any other becomes its
    last, as LEAF's indexing by -1 has it.
    """
    return np.array([_NUMBERS.get(c, len(ALPHABET) - 1) for c in text], np.uint8)


def vocabulary(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """The ``size`` commonest words, numbered from 0 in falling order; equal counts by spelling."""
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: place for place, word in enumerate(ranked[:size])}


def encode(words: Sequence[str], known: Mapping[str, int], length: int, other: int) -> list[int]:
    """The first ``length`` words as tokens; ``other`` is an unknown word, and fills up."""
    tokens = [known.get(word, other) for word in words[:length]]
    return tokens + [other] * (length - len(tokens))


def table(stream: BinaryIO, encoding: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file, each with its number from 1.

    Raises:
        DataError: For what is no such row; it names the stream.
    """
    rows = csv.reader(io.TextIOWrapper(stream, encoding, newline=""), strict=True)
    with wrap_read_errors(name_of(stream), "is no csv file"):
        yield from enumerate(rows, 1)
