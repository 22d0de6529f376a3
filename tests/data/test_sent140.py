from __future__ import annotations

import pytest
from sources import sent140 as made
from sources.reading import read

from fl.base.errors import DataError
from fl.data.datasets.sent140 import WORD, Sent140
from fl.data.text import encode, vocabulary


def test_words_are_leafs():
    assert WORD.findall("@you it's 5 o'clock... SO WHAT?! é_1 (fine)") == [
        *("you", "it's", "5", "o'clock", ".", ".", ".", "SO", "WHAT", "?", "!", "é_1", "fine")
    ]


def test_the_commonest_words_are_numbered_first():
    known = vocabulary({"b": 2, "a": 2, "rare": 1, "the": 9}, 3)
    assert known == {"the": 0, "a": 1, "b": 2}
    assert encode(["the", "rare", "b"], known, 5, 7) == [0, 7, 2, 7, 7]
    assert encode(["the", "rare", "b"], known, 2, 7) == [0, 7]


def test_more_tweets_than_any_user_has_are_too_many(tmp_path):
    with pytest.raises(DataError, match="min_samples is 64; allowed: at most 5"):
        read(Sent140(complete=False), tmp_path, made.write)
