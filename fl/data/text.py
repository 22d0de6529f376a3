"""Texts as tokens: words numbered by how common they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def vocabulary(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """The ``size`` commonest words, numbered from 0 in falling order; equal counts by spelling."""
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: place for place, word in enumerate(ranked[:size])}


def encode(words: Sequence[str], known: Mapping[str, int], length: int, other: int) -> list[int]:
    """The first ``length`` words as tokens; ``other`` is an unknown word, and fills up."""
    tokens = [known.get(word, other) for word in words[:length]]
    return tokens + [other] * (length - len(tokens))
