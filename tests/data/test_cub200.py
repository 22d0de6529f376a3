from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sources import cub200 as made
from sources.reading import read

from fl.base.errors import DataError
from fl.data import prepare
from fl.data.datasets.cub200 import CUB200

SUBSET = CUB200(side=16, vocabulary=8, words=12, complete=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return read(SUBSET, tmp_path_factory.mktemp("cub200"), made.write)


def test_photographs_are_in_the_order_of_the_list(data):
    assert (data.x.dtype, data.x.shape) == (np.uint8, (15, 3, 16, 16))
    assert SUBSET.shape == (3, 16, 16)
    for place, pixels in enumerate(data.x):
        # Of one colour each, to the rounding of JPEG; the grey one exactly.
        off = 0 if made.grey(place) else 1
        assert np.abs(pixels.astype(int) - np.reshape(made.colour(place), (3, 1, 1))).max() <= off


def test_species_and_split(data):
    assert data.y.tolist() == [0] * 5 + [1] * 5 + [199] * 5
    assert data.split.tolist() == [0, 0, 0, 0, 1] * 3
    assert len(data.classes) == 200
    assert [data.classes[i] for i in (0, 199)] == ["Black footed Albatross", "Common Yellowthroat"]
    assert (data.client, data.domain) == (None, None)


def test_normalisation_is_that_of_the_training_photographs(data):
    pixels = data.x[data.split == 0] / 255
    assert data.normalisation["mean"] == pytest.approx(pixels.mean(axis=(0, 2, 3)), abs=1e-12)
    assert data.normalisation["sd"] == pytest.approx(pixels.std(axis=(0, 2, 3)), abs=1e-9)


def test_captions_are_tokens(data):
    assert (data.text.dtype, data.text.shape) == (np.int32, (15, 10, 12))
    # "bird" is in ten of ten captions and the rest of these in nine, so by spelling.
    words = ("bird", "a", "and", "are", "beak", "has", "it", "like")
    known = {word: number for number, word in enumerate(words)}
    said = "this bird s wings are black and it has a long beak"
    assert data.text[0, 0].tolist() == [known.get(word, 8) for word in said.split()]
    assert data.text[3, 9].tolist() == [8, 0] + [8] * 10


def test_words_of_test_captions_have_no_tokens(tmp_path):
    data = read(replace(SUBSET, vocabulary=1_000), tmp_path, made.write)
    training, test = data.text[3, 9], data.text[4, 9]
    assert training[0] < 1_000
    assert test[:2].tolist() == [1_000, training[1]]


def test_captions_that_only_a_person_can_fetch_are_asked_for(tmp_path):
    only = replace(SUBSET)
    made.write(tmp_path)
    (tmp_path / "cvpr2016_cub.tar.gz").rename(tmp_path / "elsewhere.tar.gz")
    with pytest.raises(DataError) as error:
        prepare(only, "cub200", tmp_path, tmp_path / "prepared")
    for part in (f"{tmp_path}/cvpr2016_cub.tar.gz: is missing", "reedscot/cvpr2016", "`sources:`"):
        assert part in str(error.value)


def test_an_archive_of_other_sizes_is_not_complete(tmp_path):
    made.write(tmp_path)
    with pytest.raises(DataError, match=r"training has 12 photographs, expected 5,994 \(Wah"):
        CUB200().read(tmp_path, None)
