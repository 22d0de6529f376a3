"""Texts as rows of tokens: characters, words, or those of a tokenizer from the user's own file.

Words are runs of letters, digits, ``_`` and ``'``, or one of ``. , ! ? ;``, in lower case. Their
tokens in a user's table are numbers by spelling, as only a partition tells which samples are
trained on; a run makes its vocabulary from these (`fl.data.normalisation`). A published data set
has a training part, whose words are its vocabulary. A tokenizer has a vocabulary already, so that
its tokens are final.

A row may be several texts, such as a premise and a hypothesis. Then a token stands between them: a
word that no text can contain, or what the tokenizer puts between a pair. Where a row is too long,
its longest text is cut first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.base.files import is_file, is_folder
from fl.base.folders import path_of
from fl.base.hashes import change_stamp

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The 80 characters of LEAF."""
WORD_PATTERN = re.compile(r"[\w']+|[.,!?;]")
"""A word or punctuation mark in LEAF's preprocessing."""
_NUMBER_BY_CHARACTER = {character: number for number, character in enumerate(ALPHABET)}

TOKENIZER_FILE = "tokenizer.json"
PADDING_NAMES = ("[PAD]", "<pad>", "<|pad|>", "</s>", "<|endoftext|>")
"""Names of the token that fills texts up, the first that a vocabulary has, if its file says none.

Tokenizers of models that continue texts have none of the first three; the end of a text pads them.
"""


SEPARATOR_WORD = "[SEP]"
"""The word between two texts, which is none by `WORD_PATTERN`, so that no text contains it."""

RowText = str | tuple[str, ...]
"""The text of a row, or its texts that are kept apart."""

VOCABULARY = 10_000
"""Number of words with a token of their own, unless a study sets another."""


@dataclass(frozen=True)
class WordEncoder:
    """Encoder by the words of all texts.

    Attributes:
        words: The different words, by spelling.
        length: Number of words that are read of a text.
        vocabulary: Number of words that get a token of their own in a run.
    """

    words: tuple[str, ...]
    length: int
    vocabulary: int

    @classmethod
    def of(cls, texts: Iterable[RowText], length: int, vocabulary: int) -> WordEncoder:
        """Return the encoder of the texts of rows."""
        words = {word for text in texts for word in first_words(text, length)}
        return cls(tuple(sorted(words)), length, vocabulary)

    @cached_property
    def _number_by_word(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def encode(self, texts: Iterable[RowText]) -> np.ndarray:
        """Return the numbers of the words of each row, int32 ``[texts, length]``."""
        end = len(self.words)
        rows = [
            encode_words(first_words(text, self.length), self._number_by_word, self.length, end)
            for text in texts
        ]
        return np.array(rows, np.int32).reshape(-1, self.length)

    @property
    def description(self) -> dict[str, Any]:
        """Arguments of `fl.data.prepared.Writer.describe`."""
        return {"vocabulary": self.vocabulary, "words": self.words}


def first_words(text: RowText, length: int) -> list[str]:
    """Return the words of a row that are read, with `SEPARATOR_WORD` between its texts."""
    if isinstance(text, str):
        return WORD_PATTERN.findall(text.lower())[:length]
    words_of_texts = [WORD_PATTERN.findall(part.lower()) for part in text]
    counts = _shares([len(words) for words in words_of_texts], length - len(text) + 1)
    joined: list[str] = []
    for number, (words, count) in enumerate(zip(words_of_texts, counts, strict=True)):
        joined += [*([SEPARATOR_WORD] if number else []), *words[:count]]
    return joined[:length]


def _shares(counts: Sequence[int], total: int) -> list[int]:
    """Return how many words of each text are read if there is room for ``total``.

    The longest texts are cut to equal lengths. Words that are left over go to the longest of them.
    """
    shares = [0] * len(counts)
    rest = max(total, 0)
    by_length = sorted(range(len(counts)), key=counts.__getitem__)
    for position, number in enumerate(by_length):
        shares[number] = min(counts[number], rest // (len(counts) - position))
        rest -= shares[number]
    return shares


@dataclass(frozen=True)
class FileTokenizer:
    """Encoder by a tokenizer of the package tokenizers.

    Attributes:
        file: Its file ``tokenizer.json``.
        length: Number of tokens of a text, with those that the tokenizer puts around it.
        tokens: Number of different tokens.
        padding: The token that fills texts up.
    """

    file: Path
    length: int
    tokens: int
    padding: int

    @classmethod
    def open(cls, path: str, length: int) -> FileTokenizer:
        """Return the tokenizer of a file, or of a folder that has a ``tokenizer.json``.

        Raises:
            DataError: If there is none, or the package tokenizers is not installed.
        """
        file = _tokenizer_file(path)
        return cls(file, length, *_sizes(file, change_stamp([file])))

    def encode(self, texts: Sequence[RowText]) -> np.ndarray:
        """Return the tokens of each row, int32 ``[texts, length]``."""
        tokenizer = _read_tokenizer(self.file)
        tokenizer.enable_truncation(self.length)
        tokenizer.enable_padding(length=self.length, pad_id=self.padding)
        rows = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
        return np.array(rows, np.int32).reshape(-1, self.length)

    def check_pairs(self) -> None:
        """Raise a `DataError` if the tokenizer puts nothing between the texts of a pair."""
        tokenizer = _read_tokenizer(self.file)
        alone, paired = map(tokenizer.num_special_tokens_to_add, (False, True))
        if paired <= alone:
            problem = f"{self.file}: the tokenizer puts no token between the texts of a pair"
            allowed = "text_separator: blank, or a tokenizer whose post-processor has a pair"
            raise DataError(problem, allowed)

    @property
    def description(self) -> dict[str, Any]:
        """Arguments of `fl.data.prepared.Writer.describe`: none, as tokens are final."""
        return {}


class TextKeys:
    """Properties that follow from the keys of a data set of texts."""

    length: int
    vocabulary: int
    tokenizer: str | None

    @property
    def tokens(self) -> int:
        """Number of tokens: the tokenizer's, or the vocabulary and one for all other words."""
        if self.tokenizer is None:
            return self.vocabulary + 1
        if self.vocabulary != VOCABULARY:
            raise DataError("vocabulary: is set beside tokenizer", advice="leave one of them out")
        return FileTokenizer.open(self.tokenizer, self.length).tokens

    @property
    def padding(self) -> int:
        """The token that fills texts up: the tokenizer's, or the last one."""
        if self.tokenizer is None:
            return self.tokens - 1
        return FileTokenizer.open(self.tokenizer, self.length).padding

    @property
    def tokenizer_file(self) -> Path | None:
        """The file of the tokenizer, or None."""
        return None if self.tokenizer is None else _tokenizer_file(self.tokenizer)

    def encoder(self, texts: Iterable[RowText]) -> WordEncoder | FileTokenizer:
        """Return the encoder of all texts, which are read if there is no tokenizer."""
        if self.tokenizer is None:
            return WordEncoder.of(texts, self.length, self.vocabulary)
        return FileTokenizer.open(self.tokenizer, self.length)


def _tokenizer_file(path: str) -> Path:
    """Return the file of a tokenizer, which may lie in the folder that is named."""
    place = path_of(path)
    return place / TOKENIZER_FILE if is_folder(place) else place


@lru_cache(maxsize=8)
def _sizes(file: Path, stamped: str) -> tuple[int, int]:
    """Return the number of tokens and the padding of a tokenizer, read again after a change."""
    tokenizer = _read_tokenizer(file)
    declared = (tokenizer.padding or {}).get("pad_id")
    numbers = [declared, *map(tokenizer.token_to_id, PADDING_NAMES)]
    padding = next((number for number in numbers if number is not None), None)
    if padding is None:
        problem = f"{file}: the tokenizer has no token that fills texts up"
        raise DataError(problem, f"a token named {' or '.join(PADDING_NAMES)}")
    return 1 + max(tokenizer.get_vocab().values()), int(padding)


def _read_tokenizer(file: Path) -> Any:
    if not is_file(file):
        problem = f"{file}: tokenizer: the file does not exist"
        raise DataError(problem, f"a file {TOKENIZER_FILE}, or a folder that has one")
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        problem = f"{file}: tokenizer: needs the package tokenizers, which is not installed"
        raise DataError(problem, advice="pip install 'fedloom[pretrained]'") from None
    advice = "write it by `tokenizer.save` of the package tokenizers"
    with wrap_read_errors(file, "is no tokenizer", advice):
        return Tokenizer.from_file(str(file))


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
