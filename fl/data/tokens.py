"""Texts as tokens: characters of LEAF's alphabet, or words numbered by how common they are. And
tables of texts, row by row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's, of 80 characters."""
WORD_PATTERN = re.compile(r"[\w']+|[.,!?;]")
"""What LEAF takes for a word."""
_NUMBER_BY_CHARACTER = {character: number for number, character in enumerate(ALPHABET)}


def encode_characters(text: str) -> np.ndarray:
    """The number of each character in `ALPHABET`, uint8 ``[characters]``; any other becomes its
    last, as LEAF's indexing by -1 has it.
    """
    return np.array([_NUMBER_BY_CHARACTER.get(c, len(ALPHABET) - 1) for c in text], np.uint8)


def vocabulary(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """The ``size`` commonest words, numbered from 0 in falling order; equal counts by spelling."""
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: place for place, word in enumerate(ranked[:size])}


def encode_words(
    words: Sequence[str], known: Mapping[str, int], length: int, other: int
) -> list[int]:
    """The first ``length`` words as tokens; ``other`` is an unknown word, and fills up."""
    tokens = [known.get(word, other) for word in words[:length]]
    return tokens + [other] * (length - len(tokens))
