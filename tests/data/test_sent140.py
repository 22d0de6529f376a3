from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sources import sent140 as made
from sources.reading import read

from fl.base.errors import DataError
from fl.data.datasets.sent140 import WORD, Sent140
from fl.data.text import encode, vocabulary

SUBSET = Sent140(vocabulary=8, min_samples=3, complete=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return read(SUBSET, tmp_path_factory.mktemp("sent140"), made.write)


def test_words_are_leafs():
    assert WORD.findall("@you it's 5 o'clock... SO WHAT?! é_1 (fine)") == [
        *("you", "it's", "5", "o'clock", ".", ".", ".", "SO", "WHAT", "?", "!", "é_1", "fine")
    ]


def test_the_commonest_words_are_numbered_first():
    known = vocabulary({"b": 2, "a": 2, "rare": 1, "the": 9}, 3)
    assert known == {"the": 0, "a": 1, "b": 2}
    assert encode(["the", "rare", "b"], known, 5, 7) == [0, 7, 2, 7, 7]
    assert encode(["the", "rare", "b"], known, 2, 7) == [0, 7]


def test_users_tweets_and_labels(data):
    # By name: ann, tom, zoë; seldom has too few. ann has one in the test file, which is neutral.
    assert (data.x.dtype, data.x.shape) == (np.int32, (13, 25))
    assert np.bincount(data.client).tolist() == [5, 5, 3]
    assert data.y.tolist() == [1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 1, 0]
    assert data.split.tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    assert (data.classes, data.normalisation) == (("bad", "good"), None)


def test_tokens_are_those_of_the_training_tweets_of_users_that_are_kept(data):
    # Twelve tweets, the same seven words and signs in all; then of the rest the commonest.
    common = {word: i for i, word in enumerate(["!", ",", "fine", "is", "it's", "o'clock", "you"])}
    tom = ["you", "it's", "0", "o'clock", ",", "tom", "is", "fine", "!"]
    known = common | {"tom": 7}
    assert data.x[5].tolist() == encode(tom, known, 25, 8)
    assert data.x[4].tolist() == [8] * 25
    assert Sent140(vocabulary=8).tokens == 9 > data.x.max()


def test_more_tweets_than_any_user_has_are_too_many(tmp_path):
    with pytest.raises(DataError, match="min_samples is 64; allowed: at most 5"):
        read(Sent140(complete=False), tmp_path, made.write)


def test_files_of_other_sizes_are_not_complete(tmp_path):
    made.write(tmp_path)
    with pytest.raises(DataError, match=r"has 16 tweets, expected 1,600,498 \(LEAF\)"):
        replace(SUBSET, complete=True).read(tmp_path, None)
