from __future__ import annotations

from dataclasses import replace

import pytest
from sources import cub200 as made
from sources.reading import read

from fl.data.datasets.cub200 import CUB200

SUBSET = CUB200(side=16, vocabulary=8, words=12, complete=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return read(SUBSET, tmp_path_factory.mktemp("cub200"), made.write)


def test_words_of_test_captions_have_no_tokens(tmp_path):
    data = read(replace(SUBSET, vocabulary=1_000), tmp_path, made.write)
    training, test = data.text[3, 9], data.text[4, 9]
    assert training[0] < 1_000
    assert test[:2].tolist() == [1_000, training[1]]
