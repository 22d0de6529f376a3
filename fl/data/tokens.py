"""Texts as tokens: characters of LEAF's alphabet, or words numbered by frequency.

A published data set has a training part, whose words are its vocabulary. In a user's table only a
partition tells which samples are trained on. Its prepared tokens are therefore numbers of all its
words by spelling, and `rank_words` makes the vocabulary of a run from its training samples.
"""

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


def rank_words(x: np.ndarray, rows: np.ndarray, words: int, size: int) -> np.ndarray:
    """Return tokens numbered by the frequency of words in some samples.

    Args:
        x: Tokens ``[samples, length]``: numbers of words by spelling, and ``words`` after a text.
        rows: Indices of the samples whose words are counted.
        words: Number of different words in all samples.
        size: Number of words with a token of their own.

    Returns:
        A copy, int32. The commonest word is 0; equally common words are in the order of their
        numbers. The token ``size`` stands for all other words, and comes after a text.
    """
    counts = np.bincount(x[rows].ravel(), minlength=words)[:words]
    ranked = np.argsort(-counts, kind="stable")[: min(size, np.count_nonzero(counts))]
    token_by_number = np.full(words + 1, size, np.int32)
    token_by_number[ranked] = np.arange(len(ranked))
    return token_by_number[x]
