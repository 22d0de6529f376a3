"""Texts as tokens: characters of LEAF's alphabet, or words numbered by frequency."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The 80 characters of LEAF."""
WORD_PATTERN = re.compile(r"[\w']+|[.,!?;]")
"""A word or punctuation mark in LEAF's preprocessing."""
_NUMBER_BY_CHARACTER = {character: number for number, character in enumerate(ALPHABET)}


def encode_characters(text: str) -> np.ndarray:
    """Return the index of each character in `ALPHABET`, uint8 [characters].

    An unknown character gets the last index, as in LEAF, which indexes by -1.
    """
    return np.array([_NUMBER_BY_CHARACTER.get(c, len(ALPHABET) - 1) for c in text], np.uint8)


def vocabulary(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """Return the ``size`` most frequent words with their ranks from 0; ties by spelling."""
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ranked[:size])}


def encode_words(
    words: Sequence[str], number_by_word: Mapping[str, int], length: int, unknown: int
) -> list[int]:
    """Return the first ``length`` words as tokens, padded by the token ``unknown``."""
    tokens = [number_by_word.get(word, unknown) for word in words[:length]]
    return tokens + [unknown] * (length - len(tokens))
